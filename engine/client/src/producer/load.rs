//! What the producer ties to a batch in its pipeline.

use std::sync::Arc;

use bytes::Bytes;
use wire_format::{
    FormatError, Limits,
    batch::{BatchBuilder, Door, Origin, verify},
};

use super::intake::Queued;
use crate::pending::Fate;

/// A batch on its way.
pub(crate) struct Load {
    form: Form,
    pub(crate) fate: Arc<Fate>,
    pub(crate) charged: usize,
}

enum Form {
    Open(Box<BatchBuilder>),
    Sealed {
        origin: Origin,
        head: Bytes,
        payload: Bytes,
    },
}

impl Load {
    pub(crate) fn new(queued: Queued) -> Self {
        Self {
            form: Form::Open(Box::new(queued.builder)),
            fate: queued.fate,
            charged: queued.charged,
        }
    }

    /// The bytes that go out under `origin`: built at the first call, the same at each later one with the same origin.
    /// Gives the builder back when it is done with it.
    pub(crate) fn record(&mut self, origin: Origin) -> Result<(Bytes, Bytes, Option<BatchBuilder>), FormatError> {
        let mut builder = match &mut self.form {
            Form::Sealed {
                origin: known,
                head,
                payload,
            } if *known == origin => return Ok((head.clone(), payload.clone(), None)),
            Form::Sealed { head, payload, .. } => Some(reopen(head, payload)?),
            Form::Open(_) => None,
        };
        let record = match (&mut builder, &mut self.form) {
            (Some(builder), _) => builder.finish(origin)?,
            (None, Form::Open(builder)) => builder.finish(origin)?,
            (None, Form::Sealed { .. }) => return Err(FormatError::Empty),
        };
        let (head, payload) = (Bytes::from(record.head), Bytes::from(record.payload));
        let sealed = Form::Sealed {
            origin,
            head: head.clone(),
            payload: payload.clone(),
        };
        let spare = match std::mem::replace(&mut self.form, sealed) {
            Form::Open(builder) => Some(*builder),
            // It knows no limits, so it is none to use again.
            Form::Sealed { .. } => None,
        };
        Ok((head, payload, spare))
    }
}

/// Takes a sealed record apart again, to give it other numbers. Rare: only when the producer moves to a new epoch.
fn reopen(head: &Bytes, payload: &Bytes) -> Result<BatchBuilder, FormatError> {
    let bytes = [head.as_ref(), payload.as_ref()].concat();
    let view = verify(&bytes, Door::Producer, &Limits::WIDEST)?;
    let mut builder = BatchBuilder::new(view.pchannel(), Limits::WIDEST)?;
    for message in view.messages() {
        let pairs = message.properties.iter().collect::<Result<Vec<_>, _>>()?;
        builder.push(message.vchannel, message.message_type, pairs, message.body)?;
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use wire_format::{MessageType, ProducerEpoch, ProducerId, Sequence};

    use super::*;

    #[test]
    fn a_retry_has_the_same_bytes_and_a_new_epoch_only_other_numbers() {
        let mut builder = BatchBuilder::new("orders", Limits::default()).unwrap();
        builder.push("a", MessageType::INSERT, [("k", "v")], b"one").unwrap();
        builder.push("b", MessageType::DELETE, [], b"").unwrap();
        let now = Instant::now();
        let mut load = Load::new(Queued {
            builder,
            fate: Arc::default(),
            charged: 0,
            opened_at: now,
            deadline: now,
        });
        let origin = |epoch, sequence| Origin {
            producer_id: ProducerId(7),
            producer_epoch: ProducerEpoch(epoch),
            first_sequence: Sequence(sequence),
        };
        let (head, payload, spare) = load.record(origin(0, 5)).unwrap();
        assert!(spare.is_some());
        let (again_head, again_payload, spare) = load.record(origin(0, 5)).unwrap();
        assert!(spare.is_none());
        assert_eq!((&again_head, &again_payload), (&head, &payload));
        let (moved_head, moved_payload, _) = load.record(origin(1, 0)).unwrap();
        assert_eq!(moved_payload, payload);
        let bytes = [moved_head, moved_payload].concat();
        let view = verify(&bytes, Door::Producer, &Limits::default()).unwrap();
        assert_eq!(view.meta().producer_epoch, ProducerEpoch(1));
        assert_eq!(view.meta().first_sequence, Sequence(0));
        let messages: Vec<_> = view.messages().map(|m| (m.vchannel, m.message_type, m.body)).collect();
        assert_eq!(
            messages,
            [
                ("a", MessageType::INSERT, b"one".as_slice()),
                ("b", MessageType::DELETE, b"")
            ]
        );
        let pairs: Vec<_> = view.message(0).properties.iter().map(Result::unwrap).collect();
        assert_eq!(pairs, [("k", "v")]);
    }
}
