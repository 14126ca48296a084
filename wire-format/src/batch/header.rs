//! One message header, read in place.

use super::layout::{HEADER_BYTES, u16_at, u32_at, u64_at};
use crate::{ids::MessageType, timetick::Timetick};

/// Positions of the fields in the 32 bytes; a test holds them against the generated accessors.
pub(crate) mod field {
    pub const TIMETICK: usize = 0;
    pub const PAYLOAD_OFFSET: usize = 8;
    pub const PAYLOAD_LENGTH: usize = 12;
    pub const PAYLOAD_CRC32C: usize = 16;
    pub const OFFSET_DELTA: usize = 20;
    pub const VCHANNEL: usize = 24;
    pub const MESSAGE_TYPE: usize = 26;
    pub const PROPERTIES_LENGTH: usize = 28;
    pub const FLAGS: usize = 30;
}

/// The 32 bytes of a message header.
#[derive(Clone, Copy)]
pub struct Header<'a>(pub(crate) &'a [u8; HEADER_BYTES]);

impl Header<'_> {
    /// The message's timetick; zero until the server stamped it.
    #[inline]
    pub fn timetick(self) -> Timetick {
        Timetick(u64_at(self.0, field::TIMETICK))
    }

    /// Where the message's bytes begin in the payload area.
    #[inline]
    pub fn payload_offset(self) -> u32 {
        u32_at(self.0, field::PAYLOAD_OFFSET)
    }

    /// Properties and body together, in bytes.
    #[inline]
    pub fn payload_length(self) -> u32 {
        u32_at(self.0, field::PAYLOAD_LENGTH)
    }

    /// crc32c of those bytes.
    #[inline]
    pub fn payload_crc32c(self) -> u32 {
        u32_at(self.0, field::PAYLOAD_CRC32C)
    }

    /// Offset of the message minus the batch's base offset.
    #[inline]
    pub fn offset_delta(self) -> u32 {
        u32_at(self.0, field::OFFSET_DELTA)
    }

    /// Index into the batch's vchannel dictionary.
    #[inline]
    pub fn vchannel(self) -> u16 {
        u16_at(self.0, field::VCHANNEL)
    }

    /// What the message is.
    #[inline]
    pub fn message_type(self) -> MessageType {
        MessageType(u16_at(self.0, field::MESSAGE_TYPE))
    }

    /// How many of the message's bytes are properties, in front of the body.
    #[inline]
    pub fn properties_length(self) -> u16 {
        u16_at(self.0, field::PROPERTIES_LENGTH)
    }

    /// The producer's flags, carried through.
    #[inline]
    pub fn flags(self) -> u16 {
        u16_at(self.0, field::FLAGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::batch::MessageHeader;

    /// Each byte differs, so that a field read at a wrong place can't give the right value.
    #[test]
    fn fields_stand_where_the_generated_code_puts_them() {
        let bytes: [u8; HEADER_BYTES] = std::array::from_fn(|i| i as u8 + 1);
        let (ours, theirs) = (Header(&bytes), MessageHeader(bytes));
        assert_eq!(size_of::<MessageHeader>(), HEADER_BYTES);
        assert_eq!(ours.timetick().get(), theirs.timetick());
        assert_eq!(ours.payload_offset(), theirs.payload_offset());
        assert_eq!(ours.payload_length(), theirs.payload_length());
        assert_eq!(ours.payload_crc32c(), theirs.payload_crc32c());
        assert_eq!(ours.offset_delta(), theirs.offset_delta());
        assert_eq!(ours.vchannel(), theirs.vchannel());
        assert_eq!(ours.message_type().0, theirs.message_type());
        assert_eq!(ours.properties_length(), theirs.properties_length());
        assert_eq!(ours.flags(), theirs.flags());
    }
}
