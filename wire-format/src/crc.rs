//! crc32c, the one checksum of this project (Castagnoli polynomial; RFC 3720, appendix B.4).

/// The crc32c of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The crc32c of the parts as if they stood one behind the other.
pub fn crc32c_of_parts(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of_parts(&[b"1234", b"", b"56789"]), 0xe306_9283);
    }
}
