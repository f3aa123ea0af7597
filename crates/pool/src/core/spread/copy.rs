//! A COPY whose rows go to several shards: in a transaction on each, which are committed once every shard has
//! taken all of its rows. A shard that fails in its COMMIT does not undo those of the others.

use howdah_route::{Asked, CopyRows, Refusal, RowPlace};
use howdah_wire::{Frontend, Header, frontend::encode};

use super::super::{Core, Unsettled, route::write_refusal};
use crate::{
    Io, Refusal as Disconnect,
    client::ClientState,
    ids::{ClientId, Peer},
    inlet::header_at,
    spread::{CopyPhase, Copying, Rows},
};

/// So many bytes of rows are put into one CopyData.
const DATA_BYTES: usize = 32 << 10;

/// A row may have as many bytes.
const ROW_BYTES_MAX: usize = 64 << 20;

const NO_ZERO_BYTE: &str = "words of the pooler's hold no zero byte";

impl Copying {
    /// None for the binary format.
    pub(crate) fn new(rows: &Rows, shards: usize) -> Option<Self> {
        Some(Self {
            phase: CopyPhase::Begins,
            rows: CopyRows::new(rows.of.clone(), ROW_BYTES_MAX)?,
            map: rows.map.clone(),
            same_encoding: rows.same_encoding,
            data_left: 0,
            buffers: vec![Vec::new(); shards],
        })
    }

    /// Splits what has come. Gives why not.
    fn split(&mut self, bytes: &[u8], is_last: bool) -> Result<(), Refusal> {
        self.rows.push(bytes);
        while let Some((place, row)) = self.rows.next(&self.map, self.same_encoding)? {
            put(&mut self.buffers, place, row);
        }
        if is_last && let Some((place, row)) = self.rows.finish(&self.map, self.same_encoding)? {
            put(&mut self.buffers, place, row);
        }
        Ok(())
    }
}

fn put(buffers: &mut [Vec<u8>], place: RowPlace, row: &[u8]) {
    match place {
        // Legs are of all shards, in their order.
        RowPlace::Shard(shard) => buffers[shard as usize].extend_from_slice(row),
        RowPlace::All => buffers.iter_mut().for_each(|buffer| buffer.extend_from_slice(row)),
    }
}

/// What a client's bytes are, while it sends rows.
enum Piece {
    /// Data, to so many bytes of the input.
    Data(usize),
    /// The end, well or not.
    End {
        is_done: bool,
    },
    /// What means nothing here.
    Nothing(usize),
    Goodbye,
    Incomplete,
    Misplaced(String),
}

impl Core {
    /// Deals with rows that a client sends; gives how many bytes that were.
    pub(crate) fn copy_on(&mut self, id: ClientId, input: &[u8], io: &mut dyn Io) -> usize {
        let mut at = 0;
        while self.copy_phase(id) == Some(CopyPhase::Takes) {
            match self.piece(id, input, at) {
                Piece::Data(end) => {
                    self.take_rows(id, &input[at..end], io);
                    at = end;
                }
                Piece::End { is_done } => {
                    // Its body, the reason of a CopyFail, tells nobody anything.
                    at = message_end(input, at).unwrap_or(input.len());
                    self.end_rows(id, is_done, io);
                }
                Piece::Nothing(end) => at = end,
                Piece::Goodbye => {
                    self.say_goodbye(id, io);
                    return input.len();
                }
                Piece::Incomplete => break,
                Piece::Misplaced(why) => {
                    self.refuse(id, &Disconnect::Protocol(why), io);
                    return input.len();
                }
            }
        }
        self.send_rows(id, 1, io);
        at
    }

    fn piece(&mut self, id: ClientId, input: &[u8], at: usize) -> Piece {
        let body_bytes_max = self.body_bytes_max;
        let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
        let Some(copying) = spread.and_then(|spread| spread.copying.as_mut()) else {
            return Piece::Incomplete;
        };
        if copying.data_left > 0 {
            let taken = (input.len() - at).min(copying.data_left as usize);
            copying.data_left -= u32::try_from(taken).unwrap_or(copying.data_left);
            return if taken > 0 { Piece::Data(at + taken) } else { Piece::Incomplete };
        }
        let header = match header_at(input, at) {
            Ok(Some(header)) => header,
            Ok(None) => return Piece::Incomplete,
            Err(error) => return Piece::Misplaced(error.to_string()),
        };
        let Some(kind) = Frontend::from_tag(header.tag) else {
            return Piece::Misplaced(format!("no message has the tag {}", header.tag));
        };
        let header = match header.within(kind.body_bytes_max().min(body_bytes_max)) {
            Ok(header) => header,
            Err(error) => return Piece::Misplaced(error.to_string()),
        };
        let end = message_end(input, at);
        match (kind, end) {
            (Frontend::CopyData, _) => {
                copying.data_left = header.body_bytes;
                Piece::Nothing(at + Header::BYTES)
            }
            (Frontend::Terminate, _) => Piece::Goodbye,
            (_, None) => Piece::Incomplete,
            (Frontend::CopyDone | Frontend::CopyFail, Some(_)) => {
                Piece::End { is_done: kind == Frontend::CopyDone }
            }
            (Frontend::Flush | Frontend::Sync, Some(end)) => Piece::Nothing(end),
            (kind, _) => Piece::Misplaced(format!("{kind} in the middle of COPY data")),
        }
    }

    fn take_rows(&mut self, id: ClientId, bytes: &[u8], io: &mut dyn Io) {
        let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
        let Some(copying) = spread.and_then(|spread| spread.copying.as_mut()) else { return };
        match copying.split(bytes, false) {
            Ok(()) => self.send_rows(id, DATA_BYTES, io),
            Err(refusal) => self.refuse_rows(id, &refusal, io),
        }
    }

    /// The client has no more rows, or wants none of them to be kept.
    fn end_rows(&mut self, id: ClientId, is_done: bool, io: &mut dyn Io) {
        let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
        let Some(copying) = spread.and_then(|spread| spread.copying.as_mut()) else { return };
        if is_done && let Err(refusal) = copying.split(b"", true) {
            return self.refuse_rows(id, &refusal, io);
        }
        self.send_rows(id, 1, io);
        let mut message = Vec::new();
        match is_done {
            true => encode::copy_done(&mut message),
            false => encode::copy_fail(&mut message, b"by the client").expect(NO_ZERO_BYTE),
        }
        self.set_copy_phase(id, CopyPhase::Ends);
        self.tell_copying_legs(id, &message, io);
        self.update_pause(Peer::Client(id), io);
    }

    /// A row goes nowhere: the COPY fails with that.
    fn refuse_rows(&mut self, id: ClientId, refusal: &Refusal, io: &mut dyn Io) {
        let mut error = Vec::new();
        write_refusal(&mut error, refusal);
        let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
        let Some(spread) = spread else { return };
        let mut out = Vec::new();
        spread.merger.refuse(&error, &mut out);
        self.set_copy_phase(id, CopyPhase::Ends);
        self.tell(id, &out, io);
        self.update_pause(Peer::Client(id), io);
    }

    /// Sends rows to shards for which there are at least so many bytes.
    fn send_rows(&mut self, id: ClientId, bytes_min: usize, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(spread) = &mut client.spread else { return };
        let Some(copying) = &mut spread.copying else { return };
        let mut due = Vec::new();
        for (leg, buffer) in spread.legs.iter().zip(&mut copying.buffers) {
            if buffer.len() >= bytes_min.max(1) {
                let data = std::mem::take(buffer);
                due.extend(leg.filter(|_| !spread.winds_up).map(|leg| (leg, data)));
            }
        }
        for (leg, data) in due {
            let mut message = Vec::with_capacity(data.len() + Header::BYTES);
            if encode::copy_data(&mut message, &data).is_ok() {
                self.upstream(leg, &message, io);
            }
        }
    }

    fn set_copy_phase(&mut self, id: ClientId, phase: CopyPhase) {
        let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
        if let Some(copying) = spread.and_then(|spread| spread.copying.as_mut()) {
            copying.phase = phase;
        }
        self.unsettled.push(Unsettled::Client(id));
    }

    /// Sends something to those legs whose servers take rows.
    fn tell_copying_legs(&mut self, id: ClientId, message: &[u8], io: &mut dyn Io) {
        for leg in self.linked_legs(id) {
            let server = self.clients.get(leg).and_then(crate::client::Client::server);
            let takes = server.and_then(|id| self.servers.get(id)).is_some_and(|it| it.copying_in);
            if takes {
                self.upstream(leg, message, io);
            }
        }
    }

    fn linked_legs(&self, id: ClientId) -> Vec<ClientId> {
        let spread = self.clients.get(id).and_then(|client| client.spread.as_ref());
        let legs = spread.iter().flat_map(|spread| spread.legs.iter().flatten()).copied();
        legs.filter(|leg| {
            let leg = self.clients.get(*leg);
            leg.is_some_and(|leg| matches!(leg.state, ClientState::Linked(_)))
        })
        .collect()
    }

    /// The next step of a COPY, once all legs have begun. Gives whether there was one.
    pub(super) fn copy_follows(&mut self, id: ClientId, io: &mut dyn Io) -> bool {
        let Some(phase) = self.copy_phase(id) else { return false };
        let spread = self.clients.get(id).and_then(|client| client.spread.as_ref());
        let Some(spread) = spread else { return false };
        let (has_failed, is_over) = (spread.merger.has_failed(), spread.merger.is_done());
        match phase {
            CopyPhase::Begins | CopyPhase::Takes if has_failed => {
                self.set_copy_phase(id, CopyPhase::Ends);
            }
            CopyPhase::Begins if spread.merger.takes_copy() => {
                self.set_copy_phase(id, CopyPhase::Takes);
                self.update_pause(Peer::Client(id), io);
                self.replay_held(id, io);
            }
            CopyPhase::Ends if has_failed || is_over => {
                if has_failed {
                    let mut message = Vec::new();
                    encode::copy_fail(&mut message, b"another shard has failed")
                        .expect(NO_ZERO_BYTE);
                    self.tell_copying_legs(id, &message, io);
                }
                let spread = self.clients.get_mut(id).and_then(|client| client.spread.as_mut());
                let Some(spread) = spread else { return false };
                let mut out = Vec::new();
                spread.merger.asked(Asked::Commit);
                spread.merger.go_on(&mut out); // Where no shard is left, none answers.
                self.tell(id, &out, io);
                let sql: &[u8] = if has_failed { b"ROLLBACK" } else { b"COMMIT" };
                let mut message = Vec::new();
                encode::query(&mut message, sql).expect(NO_ZERO_BYTE);
                self.set_copy_phase(id, CopyPhase::Commits);
                for leg in self.linked_legs(id) {
                    self.upstream(leg, &message, io);
                }
            }
            _ => return false,
        }
        true
    }
}

/// Where the message at `at` ends, if it is all there.
fn message_end(input: &[u8], at: usize) -> Option<usize> {
    let header = header_at(input, at).ok().flatten()?;
    let end = at + Header::BYTES + header.body_bytes as usize;
    (end <= input.len()).then_some(end)
}
