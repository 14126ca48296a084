//! A segment file, read through the standard library.

use std::{fs::File, io, os::unix::fs::FileExt, path::PathBuf};

use rkyv::{deserialize, rancor};
use wire_format::{Offset, crc::crc32c};

use super::{
    super::{
        footer::{Footer, StoredFooter},
        segment::{SEGMENT_HEADER_BYTES, SegmentHeader, TRAILER_BYTES, Trailer, block_tag},
    },
    Part,
};
use crate::block::{ALIGNMENT, BlockHeader};

/// An open segment file with what its first and last pages say.
pub struct SegmentBytes {
    pub index: u64,
    pub path: PathBuf,
    pub size: u64,
    file: File,
    pub header_part: Part,
    pub footer_part: Part,
    pub trailer_part: Part,
    pub footer: Option<Footer>,
    /// Base offset and tag of its blocks, if anything tells.
    pub identity: Option<(Offset, u64)>,
    /// Hash of the pchannel that the file names.
    pub pchannel_hash: Option<u64>,
    /// The first page was never written, or names another use of the file.
    pub is_unused: bool,
}

impl SegmentBytes {
    pub fn open(index: u64, path: PathBuf) -> io::Result<Self> {
        let file = File::open(&path)?;
        let size = file.metadata()?.len();
        let mut this = Self {
            index,
            path,
            size,
            file,
            header_part: Part::Absent,
            footer_part: Part::Absent,
            trailer_part: Part::Absent,
            footer: None,
            identity: None,
            pchannel_hash: None,
            is_unused: false,
        };
        this.read_header()?;
        this.read_footer()?;
        if this.identity.is_none() {
            let first = this.read(SEGMENT_HEADER_BYTES, ALIGNMENT as u64)?;
            let first = BlockHeader::read(&first)
                .ok()
                .filter(|first| first.segment_index == index);
            this.identity = first.map(|first| (first.first_offset, first.tag));
        }
        if this.identity.is_some() && this.header_part == Part::Absent {
            this.header_part = Part::Damaged("it does not name this segment".to_owned());
        }
        Ok(this)
    }

    /// Bytes at a place; fewer at the end of the file.
    pub fn read(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        let len = len.min(self.size.saturating_sub(at));
        let mut bytes = vec![0; len as usize];
        let mut read = 0;
        while read < bytes.len() {
            match self.file.read_at(&mut bytes[read..], at + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    fn read_header(&mut self) -> io::Result<()> {
        let page = self.read(0, SEGMENT_HEADER_BYTES)?;
        match SegmentHeader::read(&page) {
            Some(header) if header.index == self.index => {
                self.header_part = Part::Whole;
                self.pchannel_hash = Some(header.pchannel_hash);
                self.identity = Some((header.base_offset, block_tag(header.pchannel_hash, header.nonce)));
            }
            Some(_) => self.is_unused = true,
            None if page.iter().all(|&byte| byte == 0) => self.is_unused = true,
            None => self.header_part = Part::Damaged("its checksum does not match".to_owned()),
        }
        Ok(())
    }

    fn read_footer(&mut self) -> io::Result<()> {
        let Some(trailer_at) = self.size.checked_sub(TRAILER_BYTES) else {
            return Ok(());
        };
        let page = self.read(trailer_at, TRAILER_BYTES)?;
        let trailer = match Trailer::read(&page) {
            Some(trailer) if trailer.index == self.index => trailer,
            Some(_) => return Ok(()),
            None => {
                if page.iter().any(|&byte| byte != 0) {
                    self.trailer_part =
                        Part::Damaged("its checksum does not match, or the file was cut short".to_owned());
                }
                return Ok(());
            }
        };
        self.trailer_part = Part::Whole;
        let bytes = self.read(trailer.footer_at, trailer.footer_len.min(self.size))?;
        if bytes.len() as u64 != trailer.footer_len || crc32c(&bytes) != trailer.footer_crc32c {
            self.footer_part = Part::Damaged("its checksum does not match".to_owned());
            return Ok(());
        }
        let stored = StoredFooter::new(&bytes);
        let footer = stored.and_then(|stored| {
            let archived = stored.get().ok_or("not a footer")?;
            deserialize::<Footer, rancor::Error>(archived).map_err(|e| e.to_string())
        });
        match footer {
            Ok(footer) => {
                let tag = block_tag(trailer.pchannel_hash, footer.nonce);
                self.identity = Some((Offset(footer.base_offset), tag));
                self.footer_part = Part::Whole;
                self.pchannel_hash = Some(trailer.pchannel_hash);
                self.footer = Some(footer);
            }
            Err(detail) => self.footer_part = Part::Damaged(detail),
        }
        Ok(())
    }

    /// First byte that no block reaches.
    pub fn blocks_end(&self) -> u64 {
        self.footer.as_ref().map_or(self.size, |footer| footer.end)
    }
}
