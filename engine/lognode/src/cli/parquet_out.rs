//! Vectors into a Parquet file: columns `id`, `vector`, `vchannel`, `offset`, `timetick`.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    ArrayRef, RecordBatch,
    builder::{Float32Builder, Float64Builder, Int64Builder, ListBuilder, StringBuilder, UInt64Builder},
};
use lognode_client::MessageView;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

use super::{
    fault::Fault,
    vector_message::{self, Elements, Id, narrow},
};

/// Rows that are handed to the encoder at once.
const ROWS_AT_ONCE: usize = 1_024;
/// A row group is closed when it holds this much: it bounds the memory.
const ROW_GROUP_BYTES: usize = 64 << 20;

enum Ids {
    Whole(Int64Builder),
    Text(StringBuilder),
}

enum Vectors {
    F32(ListBuilder<Float32Builder>),
    F64(ListBuilder<Float64Builder>),
}

/// The types of a file's first two columns are those of its first row, so they are made with it.
struct Columns {
    ids: Ids,
    vectors: Vectors,
    vchannels: StringBuilder,
    offsets: UInt64Builder,
    timeticks: UInt64Builder,
    rows: usize,
}

impl Columns {
    fn new(text_ids: bool, wide: bool) -> Self {
        Self {
            ids: if text_ids {
                Ids::Text(StringBuilder::new())
            } else {
                Ids::Whole(Int64Builder::new())
            },
            vectors: if wide {
                Vectors::F64(ListBuilder::new(Float64Builder::new()))
            } else {
                Vectors::F32(ListBuilder::new(Float32Builder::new()))
            },
            vchannels: StringBuilder::new(),
            offsets: UInt64Builder::new(),
            timeticks: UInt64Builder::new(),
            rows: 0,
        }
    }

    /// What is gathered, as a batch; the columns are empty after it.
    fn take(&mut self) -> Result<RecordBatch, Fault> {
        self.rows = 0;
        let ids: ArrayRef = match &mut self.ids {
            Ids::Whole(builder) => Arc::new(builder.finish()),
            Ids::Text(builder) => Arc::new(builder.finish()),
        };
        let vectors: ArrayRef = match &mut self.vectors {
            Vectors::F32(builder) => Arc::new(builder.finish()),
            Vectors::F64(builder) => Arc::new(builder.finish()),
        };
        let columns: [(&str, ArrayRef, bool); 5] = [
            ("id", ids, false),
            ("vector", vectors, false),
            ("vchannel", Arc::new(self.vchannels.finish()), false),
            ("offset", Arc::new(self.offsets.finish()), false),
            ("timetick", Arc::new(self.timeticks.finish()), false),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).map_err(Fault::failed)
    }
}

/// A Parquet file that is being written. It stands beside its final name, with `.part` behind it, until it is complete.
pub struct VectorSink {
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
    writer: Option<ArrowWriter<File>>,
    columns: Option<Columns>,
    rows: u64,
}

impl VectorSink {
    /// Opens the file for writing, so that a wrong path is told before anything is read.
    pub fn create(path: &Path) -> Result<Self, Fault> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create(&part).map_err(|e| {
            Fault::Usage(format!(
                "{}: {e}; give a file in an existing folder with --out",
                part.display()
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            part,
            file: Some(file),
            writer: None,
            columns: None,
            rows: 0,
        })
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds a message. Says `false` if it holds no vector and was left out.
    pub fn push(&mut self, message: &MessageView<'_>) -> Result<bool, Fault> {
        let Some(vector) = vector_message::read(message.properties, message.body) else {
            return Ok(false);
        };
        let columns = self.columns.get_or_insert_with(|| {
            Columns::new(
                matches!(vector.id, Id::Text(_)),
                matches!(vector.elements, Elements::F64(_)),
            )
        });
        let mixed = |what, of| {
            Err(Fault::Failed(format!(
                "offset {}: {what} is not {of} like those before, and a Parquet column has one type; choose what to read \
                 with --vchannel, or print JSON lines",
                message.offset
            )))
        };
        match (&mut columns.ids, vector.id) {
            (Ids::Whole(builder), Id::Whole(id)) => builder.append_value(id),
            (Ids::Text(builder), Id::Text(id)) => builder.append_value(id),
            (Ids::Whole(_), _) => return mixed("the id", "a whole number"),
            (Ids::Text(_), _) => return mixed("the id", "text"),
        }
        match (&mut columns.vectors, vector.elements) {
            (Vectors::F32(builder), Elements::F32(bytes)) => builder.append_value(narrow(bytes).map(Some)),
            (Vectors::F64(builder), elements) => builder.append_value(elements.wide().map(Some)),
            (Vectors::F32(_), Elements::F64(_)) => return mixed("the vector", "of 32-bit floats"),
        }
        columns.vchannels.append_value(message.vchannel);
        columns.offsets.append_value(message.offset.get());
        columns.timeticks.append_value(message.timetick.get());
        columns.rows += 1;
        self.rows += 1;
        if columns.rows >= ROWS_AT_ONCE {
            self.encode()?;
        }
        Ok(true)
    }

    /// Completes the file and gives it its name.
    pub fn finish(mut self) -> Result<(), Fault> {
        self.complete()?;
        std::fs::rename(&self.part, &self.path).map_err(|e| {
            Fault::Failed(format!(
                "{} can't be renamed to {}: {e}",
                self.part.display(),
                self.path.display()
            ))
        })
    }

    /// Completes what there is and leaves it under the name of an unfinished file, which it gives.
    pub fn finish_partly(mut self) -> Result<PathBuf, Fault> {
        self.complete()?;
        Ok(self.part.clone())
    }

    fn complete(&mut self) -> Result<(), Fault> {
        self.encode()?;
        match self.writer.take() {
            Some(writer) => writer.close().map(drop).map_err(|e| self.fault(&e)),
            None => Ok(()),
        }
    }

    fn encode(&mut self) -> Result<(), Fault> {
        let batch = self.columns.get_or_insert_with(|| Columns::new(false, false)).take()?;
        if let Some(file) = self.file.take() {
            let level = ZstdLevel::try_new(1).unwrap_or_default();
            let properties = WriterProperties::builder()
                .set_compression(Compression::ZSTD(level))
                .build();
            let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties));
            self.writer = Some(writer.map_err(|e| self.fault(&e))?);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut written = writer.write(&batch);
        if written.is_ok() && writer.in_progress_size() >= ROW_GROUP_BYTES {
            written = writer.flush();
        }
        written.map_err(|e| self.fault(&e))
    }

    fn fault(&self, error: &parquet::errors::ParquetError) -> Fault {
        Fault::Failed(format!("{}: {error}; is the disk full?", self.part.display()))
    }
}
