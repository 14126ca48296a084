//! Vectors from a Parquet file, in the layout that vector benchmarks use: a column of ids, a column of lists of floats, and
//! perhaps more columns. Row by row they become messages in the form of [`super::vector_message`].

use std::{fs::File, path::Path};

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, GenericListArray, OffsetSizeTrait,
    RecordBatch, StringArray, cast::AsArray, types,
};
use arrow_schema::{DataType, Schema};
use lognode_client::{Message, MessageType};
use parquet::arrow::{
    ProjectionMask,
    arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    fault::Fault,
    vector_message::{DIM, ID, ID_TYPE, ID_TYPE_STRING, is_reserved},
};

/// Rows that are decoded at once: bounds the memory, and hides the cost of a call.
const ROWS_AT_ONCE: usize = 512;

/// How rows become messages.
#[derive(Debug, Clone)]
pub struct RowMapping {
    /// Name of the column of ids.
    pub id_column: String,
    /// Name of the column of vectors.
    pub vector_column: String,
    /// What the names of vchannels begin with; a number from 1 on follows.
    pub vchannel_prefix: String,
    /// How many vchannels the rows spread over.
    pub vchannels: u32,
    /// What each message is.
    pub message_type: MessageType,
}

impl RowMapping {
    /// Whole numbers go round the vchannels one after the other; texts go where their hash says. The same id always goes to
    /// the same vchannel, so a later row with it is ordered behind this one.
    fn vchannel(&self, id: &RowId<'_>) -> String {
        let turn = match id {
            RowId::Whole(id) => id.rem_euclid(self.vchannels.into()) as u64,
            RowId::Text(id) => xxh3_64(id.as_bytes()) % u64::from(self.vchannels),
        };
        format!("{}{}", self.vchannel_prefix, turn + 1)
    }
}

enum RowId<'a> {
    Whole(i64),
    Text(&'a str),
}

/// An open file.
pub struct VectorFile {
    reader: ParquetRecordBatchReader,
    mapping: RowMapping,
    rows: u64,
    taken: u64,
    left_out: Vec<String>,
}

impl VectorFile {
    /// Opens the file and finds its columns; reads no row yet.
    pub fn open(path: &Path, mapping: RowMapping) -> Result<Self, Fault> {
        let place = path.display();
        let file = File::open(path)
            .map_err(|e| Fault::Usage(format!("{place}: {e}; give an existing file with --parquet")))?;
        // The types of Parquet itself are few; what an Arrow writer noted beside them would only add forms of the same.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
            .map_err(|e| Fault::Usage(format!("{place} is no Parquet file that can be read: {e}")))?;
        let schema = builder.schema().clone();
        let columns = choose(&schema, &mapping).map_err(|fault| fault.within(place))?;
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let mask = ProjectionMask::roots(builder.parquet_schema(), columns.taken);
        let reader = builder
            .with_projection(mask)
            .with_batch_size(ROWS_AT_ONCE)
            .build()
            .map_err(|e| Fault::Failed(format!("{}: {e}", path.display())))?;
        Ok(Self {
            reader,
            mapping,
            rows,
            taken: 0,
            left_out: columns.left_out,
        })
    }

    /// Rows in the file.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Columns that are not logged, with their types.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The next rows as messages; `None` at the end.
    pub fn next_rows(&mut self) -> Result<Option<Vec<Message>>, Fault> {
        let Some(batch) = self.reader.next() else {
            return Ok(None);
        };
        let batch = batch.map_err(|e| Fault::Failed(format!("rows from {} on can't be read: {e}", self.taken)))?;
        let messages = self.messages(&batch)?;
        self.taken += batch.num_rows() as u64;
        Ok(Some(messages))
    }

    fn messages(&self, batch: &RecordBatch) -> Result<Vec<Message>, Fault> {
        let missing = || Fault::Failed("a chosen column is gone".to_owned());
        let ids = batch.column_by_name(&self.mapping.id_column).ok_or_else(missing)?;
        let vectors = batch.column_by_name(&self.mapping.vector_column).ok_or_else(missing)?;
        let schema = batch.schema();
        let further: Vec<(String, &ArrayRef)> = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .filter(|(field, _)| *field.name() != self.mapping.id_column && *field.name() != self.mapping.vector_column)
            .map(|(field, column)| (property_name(field.name()), column))
            .collect();
        (0..batch.num_rows())
            .map(|row| {
                let at = |problem| Fault::Failed(format!("row {} (from 0): {problem}", self.taken + row as u64));
                let id = id_at(ids, row).map_err(|why| at(format!("{}: {why}", self.mapping.id_column)))?;
                let (body, dim) =
                    vector_at(vectors, row).map_err(|why| at(format!("{}: {why}", self.mapping.vector_column)))?;
                let mut message = Message::new(self.mapping.vchannel(&id), self.mapping.message_type, body);
                match id {
                    RowId::Whole(id) => message = message.property(ID, id.to_string()),
                    RowId::Text(id) => message = message.property(ID, id).property(ID_TYPE, ID_TYPE_STRING),
                }
                message = message.property(DIM, dim.to_string());
                for (name, column) in &further {
                    if let Some(value) = scalar_text(column, row) {
                        message = message.property(name, value);
                    }
                }
                Ok(message)
            })
            .collect()
    }
}

struct Chosen {
    taken: Vec<usize>,
    left_out: Vec<String>,
}

fn choose(schema: &Schema, mapping: &RowMapping) -> Result<Chosen, Fault> {
    let find = |name: &str, flag: &str| {
        schema.index_of(name).map_err(|_| {
            let names = schema
                .fields()
                .iter()
                .map(|f| format!("{} ({})", f.name(), type_name(f.data_type())));
            let names = names.collect::<Vec<_>>().join(", ");
            Fault::Usage(format!("there is no column {name:?}; use {flag} with one of: {names}"))
        })
    };
    let id = find(&mapping.id_column, "--id-column")?;
    let vector = find(&mapping.vector_column, "--vector-column")?;
    let id_type = schema.field(id).data_type();
    if !(id_type.is_integer() || matches!(id_type, DataType::Utf8)) {
        let found = type_name(id_type);
        let name = &mapping.id_column;
        return Err(Fault::Usage(format!(
            "column {name:?} is {found}, an id is a whole number or text; name the column of ids with --id-column"
        )));
    }
    let vector_type = schema.field(vector).data_type();
    let is_vector = match vector_type {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
            matches!(of.data_type(), DataType::Float32 | DataType::Float64)
        }
        _ => false,
    };
    if !is_vector {
        let found = type_name(vector_type);
        let name = &mapping.vector_column;
        return Err(Fault::Usage(format!(
            "column {name:?} is {found}, a vector is a list of float or double; name its column with --vector-column"
        )));
    }
    let mut chosen = Chosen {
        taken: vec![id, vector],
        left_out: Vec::new(),
    };
    for (index, field) in schema.fields().iter().enumerate() {
        if index == id || index == vector {
            continue;
        }
        if is_scalar(field.data_type()) {
            chosen.taken.push(index);
        } else {
            chosen
                .left_out
                .push(format!("{} ({})", field.name(), type_name(field.data_type())));
        }
    }
    Ok(chosen)
}

/// The name of a type, for people.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
            format!("list of {}", type_name(of.data_type()))
        }
        DataType::Utf8 => "text".to_owned(),
        DataType::Struct(_) => "struct".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

/// A column may be called like one of the properties that have their own meaning.
fn property_name(column: &str) -> String {
    if is_reserved(column) {
        format!("column.{column}")
    } else {
        column.to_owned()
    }
}

fn is_scalar(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Boolean | DataType::Float32 | DataType::Float64 | DataType::Utf8
        )
}

fn id_at(column: &ArrayRef, row: usize) -> Result<RowId<'_>, String> {
    if column.is_null(row) {
        return Err("the id is null".to_owned());
    }
    if let Some(texts) = column.as_any().downcast_ref::<StringArray>() {
        return Ok(RowId::Text(texts.value(row)));
    }
    let number = whole(column, row).ok_or("the id is neither a whole number nor text")?;
    let number = i64::try_from(number).map_err(|_| format!("the id {number} is larger than a 64-bit signed number"))?;
    Ok(RowId::Whole(number))
}

/// A whole number of any width.
fn whole(column: &ArrayRef, row: usize) -> Option<i128> {
    let number: i128 = match column.data_type() {
        DataType::Int8 => column.as_primitive::<types::Int8Type>().value(row).into(),
        DataType::Int16 => column.as_primitive::<types::Int16Type>().value(row).into(),
        DataType::Int32 => column.as_primitive::<types::Int32Type>().value(row).into(),
        DataType::Int64 => column.as_primitive::<types::Int64Type>().value(row).into(),
        DataType::UInt8 => column.as_primitive::<types::UInt8Type>().value(row).into(),
        DataType::UInt16 => column.as_primitive::<types::UInt16Type>().value(row).into(),
        DataType::UInt32 => column.as_primitive::<types::UInt32Type>().value(row).into(),
        DataType::UInt64 => column.as_primitive::<types::UInt64Type>().value(row).into(),
        _ => return None,
    };
    Some(number)
}

/// A value of a further column, as text that reads back as the same value; `None` for null.
fn scalar_text(column: &ArrayRef, row: usize) -> Option<String> {
    if column.is_null(row) {
        return None;
    }
    let any = column.as_any();
    if let Some(values) = any.downcast_ref::<StringArray>() {
        Some(values.value(row).to_owned())
    } else if let Some(values) = any.downcast_ref::<BooleanArray>() {
        Some(values.value(row).to_string())
    } else if let Some(values) = any.downcast_ref::<Float32Array>() {
        Some(values.value(row).to_string())
    } else if let Some(values) = any.downcast_ref::<Float64Array>() {
        Some(values.value(row).to_string())
    } else {
        whole(column, row).map(|number| number.to_string())
    }
}

/// The vector of a row: its elements in little-endian order, and how many they are.
fn vector_at(column: &ArrayRef, row: usize) -> Result<(Vec<u8>, usize), String> {
    if column.is_null(row) {
        return Err("the vector is null".to_owned());
    }
    let any = column.as_any();
    let (elements, from, to) = if let Some(lists) = any.downcast_ref::<GenericListArray<i32>>() {
        span(lists, row)
    } else if let Some(lists) = any.downcast_ref::<GenericListArray<i64>>() {
        span(lists, row)
    } else if let Some(lists) = any.downcast_ref::<FixedSizeListArray>() {
        let length = lists.value_length() as usize;
        let from = lists.value_offset_at(row);
        (lists.values(), from, from + length)
    } else {
        return Err(format!("it is {}, not a list", type_name(column.data_type())));
    };
    if elements.null_count() > 0
        && let Some(null) = (from..to).find(|&at| elements.is_null(at))
    {
        return Err(format!("element {} of the vector is null", null - from));
    }
    if let Some(values) = elements.as_any().downcast_ref::<Float32Array>() {
        let bytes = values.values()[from..to].iter().flat_map(|v| v.to_le_bytes());
        Ok((bytes.collect(), to - from))
    } else if let Some(values) = elements.as_any().downcast_ref::<Float64Array>() {
        let bytes = values.values()[from..to].iter().flat_map(|v| v.to_le_bytes());
        Ok((bytes.collect(), to - from))
    } else {
        Err(format!("its elements are {}", type_name(elements.data_type())))
    }
}

fn span<O: OffsetSizeTrait>(lists: &GenericListArray<O>, row: usize) -> (&ArrayRef, usize, usize) {
    let offsets = lists.value_offsets();
    (lists.values(), offsets[row].as_usize(), offsets[row + 1].as_usize())
}
