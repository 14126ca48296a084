//! How a vector travels as a message. The log itself never looks into it; `produce` writes this form, `consume` reads it.
//!
//! - The body is the vector: its elements one behind the other, little-endian `f32`, or `f64` where the source had that.
//! - Property `id` is the row's id as text; `id_type` is `string` if the id is text, and absent if it is a whole number.
//! - Property `dim` is the number of elements. So the width of an element is the body's length over `dim`.
//! - All other properties are further columns of the row.

use wire_format::batch::Properties;

/// Property that holds the id.
pub const ID: &str = "id";
/// Property that tells a text id from a whole number.
pub const ID_TYPE: &str = "id_type";
/// The value of [`ID_TYPE`] for text.
pub const ID_TYPE_STRING: &str = "string";
/// Property that holds the number of elements.
pub const DIM: &str = "dim";

/// Whether a property has its own meaning in a vector message.
pub fn is_reserved(key: &str) -> bool {
    matches!(key, ID | ID_TYPE | DIM)
}

/// The id of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Id<'a> {
    /// A whole number.
    Whole(i64),
    /// Text.
    Text(&'a str),
}

/// The elements of a vector, as they stand in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements<'a> {
    /// 4 bytes each.
    F32(&'a [u8]),
    /// 8 bytes each.
    F64(&'a [u8]),
}

impl<'a> Elements<'a> {
    /// Each element, with the width of the wider form, which holds both exactly.
    pub fn wide(self) -> impl Iterator<Item = f64> + 'a {
        let (bytes, width) = match self {
            Self::F32(bytes) => (bytes, 4),
            Self::F64(bytes) => (bytes, 8),
        };
        bytes.chunks_exact(width).map(|element| match *element {
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => f64::NAN,
        })
    }
}

/// Each element of a body of `f32`.
pub fn narrow(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|element| f32::from_le_bytes(*element))
}

/// A message that holds a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorMessage<'a> {
    /// The row's id.
    pub id: Id<'a>,
    /// The vector.
    pub elements: Elements<'a>,
}

/// Reads a message as a vector; `None` if it is something else.
pub fn read<'a>(properties: Properties<'a>, body: &'a [u8]) -> Option<VectorMessage<'a>> {
    let (mut id, mut dim, mut is_text) = (None, None, false);
    for pair in properties.iter() {
        match pair.ok()? {
            (ID, value) => id = Some(value),
            (DIM, value) => dim = Some(value.parse::<usize>().ok()?),
            (ID_TYPE, value) => is_text = value == ID_TYPE_STRING,
            _ => {}
        }
    }
    let (id, dim) = (id?, dim?);
    let elements = if dim.checked_mul(4)? == body.len() {
        Elements::F32(body)
    } else if dim.checked_mul(8)? == body.len() {
        Elements::F64(body)
    } else {
        return None;
    };
    let id = if is_text {
        Id::Text(id)
    } else {
        Id::Whole(id.parse().ok()?)
    };
    Some(VectorMessage { id, elements })
}
