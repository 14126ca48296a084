//! Bounds on everything that untrusted bytes may ask for.

use crate::error::FormatError;

/// How large a batch may be. Checked before anything is allocated for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Whole record: prefix, index and payload.
    pub batch_bytes: u32,
    /// Messages in a batch.
    pub messages: u32,
    /// Distinct vchannels in a batch.
    pub vchannels: u32,
    /// Bytes of a pchannel's or vchannel's name.
    pub name_bytes: u32,
}

impl Limits {
    /// No configuration may allow a larger record than this: positions in a record are 32 bits and a block holds it whole.
    pub const BATCH_BYTES_MAX: u32 = 64 << 20;
    /// Names longer than this are refused everywhere.
    pub const NAME_BYTES_MAX: u32 = 255;
    /// The widest limits a build accepts: for records that were taken under limits since lowered.
    pub const WIDEST: Self = Self {
        batch_bytes: Self::BATCH_BYTES_MAX,
        messages: Self::BATCH_BYTES_MAX / crate::batch::HEADER_BYTES as u32,
        vchannels: u16::MAX as u32,
        name_bytes: Self::NAME_BYTES_MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_bytes: 8 << 20,
            messages: 65_536,
            vchannels: 4_096,
            name_bytes: Self::NAME_BYTES_MAX,
        }
    }
}

/// Checks the name of a pchannel: it becomes the name of a folder and, on other backends, of a topic.
pub fn check_pchannel_name(name: &str) -> Result<(), FormatError> {
    let fault = if name.is_empty() {
        "it is empty"
    } else if name.len() > Limits::NAME_BYTES_MAX as usize {
        "it is longer than 255 bytes"
    } else if name.starts_with('.') {
        "it begins with a dot"
    } else if !name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    {
        "only ASCII letters, digits, '-', '_' and '.' may stand in it"
    } else {
        return Ok(());
    };
    Err(name_error("pchannel", name, fault))
}

/// Checks the name of a vchannel: any text without control characters.
pub fn check_vchannel_name(name: &str, limits: &Limits) -> Result<(), FormatError> {
    let fault = if name.is_empty() {
        "it is empty"
    } else if name.len() > limits.name_bytes as usize {
        "it is longer than the limit"
    } else if name.chars().any(char::is_control) {
        "it has control characters"
    } else {
        return Ok(());
    };
    Err(name_error("vchannel", name, fault))
}

fn name_error(what: &'static str, name: &str, why: &'static str) -> FormatError {
    FormatError::Name {
        what,
        name: name.chars().take(64).collect(),
        why,
    }
}
