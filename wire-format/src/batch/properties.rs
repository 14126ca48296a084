//! A message's properties: pairs of texts in front of its body, each `key length u16 | value length u16 | key | value`.

use super::layout::u16_at;
use crate::error::FormatError;

/// The properties of one message, read in place. The server never looks into them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Properties<'a>(pub(crate) &'a [u8]);

impl<'a> Properties<'a> {
    /// The bytes as they travel.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The pairs, in the order in which they were written. An error ends the iteration.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&'a str, &'a str), FormatError>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let pair = take_pair(&mut rest);
            if pair.is_err() {
                rest = &[];
            }
            Some(pair)
        })
    }
}

fn take_pair<'a>(rest: &mut &'a [u8]) -> Result<(&'a str, &'a str), FormatError> {
    let cut = FormatError::Properties {
        detail: "a pair is cut short",
    };
    let (lengths, tail) = rest.split_at_checked(4).ok_or(cut.clone())?;
    let (key, tail) = tail.split_at_checked(u16_at(lengths, 0).into()).ok_or(cut.clone())?;
    let (value, tail) = tail.split_at_checked(u16_at(lengths, 2).into()).ok_or(cut)?;
    *rest = tail;
    let text = |b| {
        std::str::from_utf8(b).map_err(|_| FormatError::Properties {
            detail: "a text is not UTF-8",
        })
    };
    Ok((text(key)?, text(value)?))
}

/// Appends the pairs to `out` and says how many bytes they take. On an error `out` is as it was before.
pub(crate) fn append<'p>(
    pairs: impl IntoIterator<Item = (&'p str, &'p str)>,
    out: &mut Vec<u8>,
) -> Result<u16, FormatError> {
    let start = out.len();
    let mut total = 0u16;
    for (key, value) in pairs {
        let bytes = 4 + key.len() + value.len();
        let Some(sum) = u16::try_from(bytes).ok().and_then(|b| total.checked_add(b)) else {
            out.truncate(start);
            return Err(FormatError::TooLarge {
                what: "bytes of all properties of a message",
                found: u64::from(total) + bytes as u64,
                limit: u16::MAX.into(),
            });
        };
        total = sum;
        // Both lengths fit: their sum does.
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(&(value.len() as u16).to_le_bytes());
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    Ok(total)
}
