//! Producers that retry what was not answered, and readers that come back where they were.

use std::collections::VecDeque;

use lognode_core::{AppendRequest, Cursor};
use wire_format::{Offset, ProducerEpoch, ProducerId, Sequence, Timetick};

pub struct Producer {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub next: Sequence,
    /// Sent, not answered; at most as many as the server's window.
    pub outstanding: VecDeque<AppendRequest>,
    pub connection: u64,
    pub connected: bool,
}

impl Producer {
    pub fn new(id: u64) -> Self {
        Self {
            id: ProducerId(id),
            epoch: ProducerEpoch(1),
            next: Sequence::ZERO,
            outstanding: VecDeque::new(),
            connection: 0,
            connected: true,
        }
    }

    pub fn batch(&mut self, count: u32) -> AppendRequest {
        let request = AppendRequest {
            producer: self.id,
            epoch: self.epoch,
            first_sequence: self.next,
            count,
        };
        self.next = self.next.plus(u64::from(count));
        self.outstanding.push_back(request);
        request
    }

    /// The program behind it starts anew: what was not answered stays unknown for ever.
    pub fn reborn(&mut self) {
        self.epoch.0 += 1;
        self.next = Sequence::ZERO;
        self.outstanding.clear();
    }
}

pub struct Reader {
    /// Takes batches of producers with this parity; 2 takes all, 3 none.
    pub wants: u64,
    pub cursor: Cursor,
    pub connected: bool,
    /// What the client remembers over connections.
    pub next: Offset,
    pub ticked: Timetick,
    pub last: Timetick,
}

impl Reader {
    pub fn new(wants: u64) -> Self {
        Self {
            wants,
            cursor: Cursor::new(Offset::ZERO),
            connected: false,
            next: Offset::ZERO,
            ticked: Timetick::ZERO,
            last: Timetick::ZERO,
        }
    }

    pub fn wants(&self, producer: ProducerId) -> bool {
        self.wants == 2 || producer.0 % 2 == self.wants
    }

    /// Reads again from an explicit place: forgets what it was told.
    pub fn restart_at(&mut self, offset: Offset) {
        self.next = offset;
        self.ticked = Timetick::ZERO;
        self.last = Timetick::ZERO;
        self.connected = false;
    }
}
