//! Messages as lines of JSON: what `produce --jsonl` reads and `consume` prints.
//!
//! A line is an object: `vchannel`, `type` (a name such as `insert`, or a number), `properties` (an object of texts), and the
//! body, either as `body` (text) or as `body_base64`. `consume` adds `offset` and `timetick`, which `produce` ignores: what
//! `consume --raw` prints can be produced again as it is.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use lognode_client::{Message, MessageType, MessageView};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
    ser::{SerializeMap, SerializeSeq},
};
use wire_format::batch::Properties;

use super::{
    fault::Fault,
    vector_message::{self, Elements, Id, VectorMessage, is_reserved, narrow},
};

/// Pairs of texts in the order in which they stand, whether or not a key comes twice.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TypeName {
    Name(String),
    Number(u16),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputLine {
    vchannel: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<TypeName>,
    #[serde(default)]
    properties: Pairs,
    body: Option<String>,
    body_base64: Option<String>,
    #[serde(rename = "offset")]
    _offset: Option<IgnoredAny>,
    #[serde(rename = "timetick")]
    _timetick: Option<IgnoredAny>,
    tick: Option<IgnoredAny>,
    #[serde(rename = "next_offset")]
    _next_offset: Option<IgnoredAny>,
    #[serde(rename = "id")]
    _id: Option<IgnoredAny>,
    vector: Option<IgnoredAny>,
}

/// Reads a line. `None`: it is empty, or a tick, and holds no message.
pub fn parse(line: &[u8], default_type: MessageType) -> Result<Option<Message>, Fault> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let wrong = |text: String| Err(Fault::Failed(text));
    let line: InputLine = match serde_json::from_slice(line) {
        Ok(line) => line,
        Err(e) => {
            return wrong(format!(
                "{e}; a line is an object of vchannel, type, properties and body or body_base64"
            ));
        }
    };
    if line.tick.is_some() {
        return Ok(None);
    }
    if line.vector.is_some() {
        return wrong(
            "it has a vector for people to read; to copy messages print them with `consume --raw`".to_owned(),
        );
    }
    let Some(vchannel) = line.vchannel else {
        return wrong("vchannel is missing".to_owned());
    };
    let message_type = match line.message_type {
        None => default_type,
        Some(TypeName::Number(number)) => MessageType(number),
        Some(TypeName::Name(name)) => name.parse().map_err(Fault::failed)?,
    };
    let body = match (line.body, line.body_base64) {
        (Some(_), Some(_)) => return wrong("it has both body and body_base64; leave one out".to_owned()),
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => match BASE64_STANDARD.decode(&text) {
            Ok(bytes) => bytes,
            Err(e) => return wrong(format!("body_base64: {e}")),
        },
        (None, None) => return wrong("the body is missing: give body or body_base64, which may be empty".to_owned()),
    };
    let mut message = Message::new(vchannel, message_type, body);
    message.properties = line.properties.0;
    Ok(Some(message))
}

/// A line as it is printed. Vectors are printed as numbers, unless the form is raw or a number is none that JSON knows.
pub struct OutputLine<'a> {
    message: MessageView<'a>,
    vector: Option<VectorMessage<'a>>,
}

impl<'a> OutputLine<'a> {
    /// The line of a message.
    pub fn new(message: MessageView<'a>, raw: bool) -> Self {
        let finite = |vector: &VectorMessage<'_>| vector.elements.wide().all(f64::is_finite);
        let vector = if raw {
            None
        } else {
            vector_message::read(message.properties, message.body).filter(finite)
        };
        Self { message, vector }
    }
}

impl Serialize for OutputLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = &self.message;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("offset", &message.offset.get())?;
        map.serialize_entry("timetick", &message.timetick.get())?;
        map.serialize_entry("vchannel", message.vchannel)?;
        map.serialize_entry("type", &message.message_type.to_string())?;
        map.serialize_entry(
            "properties",
            &PropertiesOf {
                properties: message.properties,
                without_reserved: self.vector.is_some(),
            },
        )?;
        match (&self.vector, std::str::from_utf8(message.body)) {
            (Some(vector), _) => {
                match vector.id {
                    Id::Whole(id) => map.serialize_entry("id", &id)?,
                    Id::Text(id) => map.serialize_entry("id", id)?,
                }
                map.serialize_entry("vector", &Numbers(vector.elements))?;
            }
            (None, Ok(text)) => map.serialize_entry("body", text)?,
            (None, Err(_)) => map.serialize_entry("body_base64", &BASE64_STANDARD.encode(message.body))?,
        }
        map.end()
    }
}

struct PropertiesOf<'a> {
    properties: Properties<'a>,
    without_reserved: bool,
}

impl Serialize for PropertiesOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for pair in self.properties.iter() {
            match pair {
                Ok((key, _)) if self.without_reserved && is_reserved(key) => {}
                Ok((key, value)) => map.serialize_entry(key, value)?,
                // What another program wrote wrongly must not stop the reading of all others.
                Err(error) => map.serialize_entry("unreadable", &error.to_string())?,
            }
        }
        map.end()
    }
}

struct Numbers<'a>(Elements<'a>);

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        match self.0 {
            // Printed as what they are: widened, 0.1 would become 0.10000000149011612.
            Elements::F32(bytes) => narrow(bytes).try_for_each(|number| list.serialize_element(&number))?,
            wide @ Elements::F64(_) => wide.wide().try_for_each(|number| list.serialize_element(&number))?,
        }
        list.end()
    }
}

/// A tick as it is printed.
#[derive(Serialize)]
pub struct TickLine {
    /// The promise.
    pub tick: u64,
    /// Where reading goes on.
    pub next_offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Message>, String> {
        parse(line.as_bytes(), MessageType::INSERT).map_err(|fault| fault.text().to_owned())
    }

    #[test]
    fn order_and_repeats_of_properties_are_kept() {
        let line = r#"{"vchannel":"v","type":"delete","properties":{"z":"1","a":"2","z":"3"},"body":""}"#;
        let message = read(line).unwrap().unwrap();
        let expected = [("z", "1"), ("a", "2"), ("z", "3")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(message.properties, expected);
        assert_eq!(message.message_type, MessageType::DELETE);
        assert!(message.body.is_empty());
    }

    #[test]
    fn types_may_be_names_numbers_or_missing() {
        for (text, expected) in [("\"type-77\"", 77), ("77", 77), ("\"insert\"", 2)] {
            let message = read(&format!(r#"{{"vchannel":"v","type":{text},"body":"x"}}"#))
                .unwrap()
                .unwrap();
            assert_eq!(message.message_type, MessageType(expected));
        }
        let message = read(r#"{"vchannel":"v","body_base64":"AP8="}"#).unwrap().unwrap();
        assert_eq!(
            (message.message_type, &message.body[..]),
            (MessageType::INSERT, &[0, 255][..])
        );
    }

    #[test]
    fn empty_lines_and_ticks_hold_no_message() {
        for line in ["", "  \r\n", r#"{"tick":5,"next_offset":1}"#] {
            assert_eq!(read(line), Ok(None));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            (r#"{"body":"x"}"#, "vchannel is missing"),
            (r#"{"vchannel":"v"}"#, "body is missing"),
            (r#"{"vchannel":"v","body":"x","body_base64":""}"#, "both"),
            (r#"{"vchannel":"v","body":"x","vchanel":"w"}"#, "vchanel"),
            (r#"{"vchannel":"v","body_base64":"*"}"#, "body_base64"),
            (r#"{"vchannel":"v","id":1,"vector":[1.0]}"#, "--raw"),
            (r#"{"vchannel":"v","properties":{"a":1},"body":""}"#, "string"),
            ("[1]", "object"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
    }
}
