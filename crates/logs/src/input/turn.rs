//! Entries of log services that come from new to old, turned round: `gcloud logging read` and consoles
//! give the newest first.
//!
//! The first steps in time show which way the entries run. Those that run backwards are held until the
//! end of the file, within a bound: a log that is larger cannot be turned round in memory.

use crate::summary::Reason;

/// Hands entries on in the order of their times.
#[derive(Debug, Default)]
pub(super) struct Turn {
    direction: Direction,
    /// Time of the entry before.
    time: Vec<u8>,
    /// Steps forwards in time, less those backwards.
    balance: i32,
    steps: u32,
    /// Entries that wait, in the order they came.
    held: Vec<Vec<u8>>,
    held_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Direction {
    #[default]
    Unknown,
    /// Nothing is held.
    AsTheyCome,
    Backwards,
}

/// Steps in time after which the direction is clear.
const STEPS: u32 = 3;
/// Entries that wait for it at most, if they have one time.
const UNKNOWN_MAX: usize = 1000;
/// Bytes of entries that are turned round at most.
const HELD_BYTES_MAX: usize = 64 << 20;

impl Turn {
    /// Takes the entry of this time that was appended to `inside` behind `start`. Says once that entries
    /// run backwards, and whether that could be mended.
    pub(super) fn take(
        &mut self,
        time: &[u8],
        start: usize,
        inside: &mut Vec<u8>,
    ) -> Option<Reason> {
        if self.direction == Direction::AsTheyCome {
            return None;
        }
        let entry = inside.split_off(start);
        self.held_bytes += entry.len();
        self.held.push(entry);
        if self.direction == Direction::Unknown {
            return self.settle(time, inside);
        }
        if self.held_bytes <= HELD_BYTES_MAX {
            return None;
        }
        self.release(inside);
        Some(Reason::BackwardsTooLong)
    }

    /// Nothing came for a while: what is live runs forwards.
    pub(super) fn idle(&mut self, inside: &mut Vec<u8>) {
        if self.direction == Direction::Unknown && !self.held.is_empty() {
            self.release(inside);
        }
    }

    /// Nothing will come any more.
    pub(super) fn finish(&mut self, inside: &mut Vec<u8>) -> Option<Reason> {
        let was_unknown = self.direction == Direction::Unknown;
        let is_backwards =
            self.direction == Direction::Backwards || was_unknown && self.balance < 0;
        if is_backwards {
            self.held.reverse();
        }
        self.release(inside);
        (was_unknown && is_backwards).then_some(Reason::Backwards)
    }

    /// Looks at one more step in time.
    fn settle(&mut self, time: &[u8], inside: &mut Vec<u8>) -> Option<Reason> {
        if time.is_empty() {
            self.release(inside);
            return None;
        }
        if time != self.time {
            if !self.time.is_empty() {
                self.steps += 1;
                self.balance += if time > self.time.as_slice() { 1 } else { -1 };
            }
            self.time = time.to_vec();
        }
        if self.steps < STEPS && self.held.len() < UNKNOWN_MAX {
            return None;
        }
        if self.balance < 0 {
            self.direction = Direction::Backwards;
            return Some(Reason::Backwards);
        }
        self.release(inside);
        None
    }

    /// Hands over what is held; from now on entries pass.
    fn release(&mut self, inside: &mut Vec<u8>) {
        self.direction = Direction::AsTheyCome;
        for entry in self.held.drain(..) {
            inside.extend(entry);
        }
        self.held_bytes = 0;
    }
}

#[test]
fn too_much_to_turn_round_passes_as_it_comes() {
    let mut turn = Turn::default();
    let (mut inside, mut said) = (Vec::new(), Vec::new());
    for number in (0..10_u32).rev() {
        let start = inside.len();
        inside.resize(start + (8 << 20), b'x');
        said.extend(turn.take(format!("{number:02}").as_bytes(), start, &mut inside));
        assert!(turn.held_bytes <= HELD_BYTES_MAX);
    }
    said.extend(turn.finish(&mut inside));
    assert_eq!(said, [Reason::Backwards, Reason::BackwardsTooLong]);
    assert_eq!(inside.len(), 10 * (8 << 20));
}
