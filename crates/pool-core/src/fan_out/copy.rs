//! COPY FROM with rows for several shards. It runs in one transaction per shard; all of them are
//! committed once the COPY has succeeded on every shard. If one COMMIT fails, the others are not
//! undone.

use howdah_route::{CopyRowSplitter, Refusal, RowTarget, ShardRequest};
use howdah_wire::{Frontend, Header, frontend::encode};

use crate::{
    ClientRefusal as Disconnect,
    call::{CoreCall, Step},
    clients::{Clients, leaving},
    fan_out::active::{CopyPhase, CopyRowRouting, FanOutCopy},
    messages::frame_cursor::header_at,
    peers::Peers,
    pools::Pools,
    routing::context::write_refusal,
    state::{
        client::ClientConnection,
        ids::{ClientId, PeerId},
    },
};

/// Bytes of rows collected for a shard before they are sent in a CopyData message. At the end of
/// the received input, fewer are sent.
const COPY_DATA_BYTES: usize = 32 << 10;

/// Maximum length of a row, in bytes: 64 MiB.
const ROW_BYTES_MAX: usize = 64 << 20;

const NO_ZERO_BYTE: &str = "the pooler's own text has no zero byte";

impl FanOutCopy {
    /// Creates the state of a COPY; `None` for the binary format, which cannot be split.
    pub(crate) fn new(rows: &CopyRowRouting, shards: usize) -> Option<Self> {
        Some(Self {
            phase: CopyPhase::Starting,
            rows: CopyRowSplitter::new(rows.statement.clone(), ROW_BYTES_MAX)?,
            map: rows.map.clone(),
            has_same_encoding: rows.has_same_encoding,
            data_left: 0,
            buffers: vec![Vec::new(); shards],
        })
    }

    /// Splits received data into rows and appends each to the buffer of its shard. Returns an error
    /// if a row is invalid or cannot be routed.
    fn split(&mut self, bytes: &[u8], is_last: bool) -> Result<(), Refusal> {
        self.rows.push(bytes);
        while let Some((place, row)) = self.rows.next(&self.map, self.has_same_encoding)? {
            append_row(&mut self.buffers, place, row);
        }
        if is_last
            && let Some((place, row)) = self.rows.finish(&self.map, self.has_same_encoding)?
        {
            append_row(&mut self.buffers, place, row);
        }
        Ok(())
    }
}

fn append_row(buffers: &mut [Vec<u8>], place: RowTarget, row: &[u8]) {
    match place {
        // Sub-requests are in the order of shards, one per shard.
        RowTarget::Shard(shard) => buffers[shard as usize].extend_from_slice(row),
        RowTarget::All => buffers.iter_mut().for_each(|buffer| buffer.extend_from_slice(row)),
    }
}

/// The next part of a client's input during COPY. The numbers are end offsets within the input.
enum CopyInput {
    /// Complete or partial rows.
    Data(usize),
    /// CopyDone or CopyFail.
    End {
        is_done: bool,
    },
    /// A header or message to ignore.
    Ignored(usize),
    Terminate,
    Incomplete,
    Misplaced(String),
}

/// Processes COPY data that a client sent; returns the number of bytes processed.
pub(crate) fn process_input(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
    input: &[u8],
) -> usize {
    let mut at = 0;
    while phase(&peers.clients, id) == Some(CopyPhase::Receiving) {
        match next_input(peers, id, input, at) {
            CopyInput::Data(end) => {
                route_rows(peers, call, id, &input[at..end]);
                at = end;
            }
            CopyInput::End { is_done } => {
                // The body, such as the reason in CopyFail, is not needed.
                at = message_end(input, at).unwrap_or(input.len());
                finish_rows(peers, call, id, is_done);
            }
            CopyInput::Ignored(end) => at = end,
            CopyInput::Terminate => {
                leaving::terminate(peers, pools, call, id);
                return input.len();
            }
            CopyInput::Incomplete => break,
            CopyInput::Misplaced(why) => {
                leaving::refuse(peers, pools, call, id, &Disconnect::ProtocolViolation(why));
                return input.len();
            }
        }
    }
    send_rows(peers, call, id, 1);
    at
}

fn next_input(peers: &mut Peers, id: ClientId, input: &[u8], at: usize) -> CopyInput {
    let body_bytes_max = peers.body_bytes_max;
    let fan_out = peers.fan_out_mut(id);
    let Some(copying) = fan_out.and_then(|fan_out| fan_out.copy.as_mut()) else {
        return CopyInput::Incomplete;
    };
    if copying.data_left > 0 {
        let taken = (input.len() - at).min(copying.data_left as usize);
        copying.data_left -= u32::try_from(taken).unwrap_or(copying.data_left);
        return if taken > 0 { CopyInput::Data(at + taken) } else { CopyInput::Incomplete };
    }
    let header = match header_at(input, at) {
        Ok(Some(header)) => header,
        Ok(None) => return CopyInput::Incomplete,
        Err(error) => return CopyInput::Misplaced(error.to_string()),
    };
    let Some(kind) = Frontend::from_tag(header.tag) else {
        return CopyInput::Misplaced(format!("no message has the tag {}", header.tag));
    };
    let header = match header.limited_to(kind.body_bytes_max().min(body_bytes_max)) {
        Ok(header) => header,
        Err(error) => return CopyInput::Misplaced(error.to_string()),
    };
    let end = message_end(input, at);
    match (kind, end) {
        (Frontend::CopyData, _) => {
            copying.data_left = header.body_bytes;
            CopyInput::Ignored(at + Header::BYTES)
        }
        (Frontend::Terminate, _) => CopyInput::Terminate,
        (_, None) => CopyInput::Incomplete,
        (Frontend::CopyDone | Frontend::CopyFail, Some(_)) => {
            CopyInput::End { is_done: kind == Frontend::CopyDone }
        }
        (Frontend::Flush | Frontend::Sync, Some(end)) => CopyInput::Ignored(end),
        (kind, _) => CopyInput::Misplaced(format!("unexpected {kind} during COPY FROM STDIN")),
    }
}

fn route_rows(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, bytes: &[u8]) {
    let fan_out = peers.fan_out_mut(id);
    let Some(copying) = fan_out.and_then(|fan_out| fan_out.copy.as_mut()) else { return };
    match copying.split(bytes, false) {
        Ok(()) => send_rows(peers, call, id, COPY_DATA_BYTES),
        Err(refusal) => refuse_rows(peers, call, id, &refusal),
    }
}

/// Handles the end of the client's rows: CopyDone, or CopyFail if `is_done` is false.
fn finish_rows(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, is_done: bool) {
    let fan_out = peers.fan_out_mut(id);
    let Some(copying) = fan_out.and_then(|fan_out| fan_out.copy.as_mut()) else { return };
    if is_done && let Err(refusal) = copying.split(b"", true) {
        return refuse_rows(peers, call, id, &refusal);
    }
    send_rows(peers, call, id, 1);
    let mut message = Vec::new();
    if is_done {
        encode::copy_done(&mut message);
    } else {
        encode::copy_fail(&mut message, b"aborted by the client").expect(NO_ZERO_BYTE);
    }
    set_phase(peers, call, id, CopyPhase::Finishing);
    send_to_copying(peers, call, id, &message);
    peers.update_pause(PeerId::Client(id), call);
}

/// Fails the COPY because a row is invalid or cannot be routed.
fn refuse_rows(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, refusal: &Refusal) {
    let mut error = Vec::new();
    write_refusal(&mut error, refusal);
    let Some(fan_out) = peers.fan_out_mut(id) else { return };
    let mut out = Vec::new();
    fan_out.merger.refuse(&error, &mut out);
    set_phase(peers, call, id, CopyPhase::Finishing);
    peers.send_merged(id, &out, call);
    peers.update_pause(PeerId::Client(id), call);
}

/// Sends rows to the shards for which at least `bytes_min` bytes are buffered.
fn send_rows(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, bytes_min: usize) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    let Some(fan_out) = &mut client.fan_out else { return };
    let Some(copying) = &mut fan_out.copy else { return };
    let mut outgoing = Vec::new();
    for (sub_request, buffer) in fan_out.sub_requests.iter().zip(&mut copying.buffers) {
        if buffer.len() >= bytes_min.max(1) {
            let data = std::mem::take(buffer);
            outgoing.extend(
                sub_request.filter(|_| !fan_out.is_aborting).map(|sub_request| (sub_request, data)),
            );
        }
    }
    for (sub_request, data) in outgoing {
        let mut message = Vec::with_capacity(data.len() + Header::BYTES);
        if encode::copy_data(&mut message, &data).is_ok() {
            send_to(peers, call, sub_request, &message);
        }
    }
}

fn set_phase(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, phase: CopyPhase) {
    let fan_out = peers.fan_out_mut(id);
    if let Some(copying) = fan_out.and_then(|fan_out| fan_out.copy.as_mut()) {
        copying.phase = phase;
    }
    call.steps.push(Step::Client(id));
}

/// Sends a message to the sub-requests whose servers are in COPY mode.
fn send_to_copying(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId, message: &[u8]) {
    for sub_request in peers.clients.linked_sub_requests(id) {
        let server = peers.clients.get(sub_request).and_then(ClientConnection::server);
        let takes =
            server.and_then(|id| peers.servers.get(id)).is_some_and(|it| it.batch.is_copying_in);
        if takes {
            send_to(peers, call, sub_request, message);
        }
    }
}

/// Sends a message to a sub-request, after the messages that it has not processed yet.
fn send_to(peers: &mut Peers, call: &mut CoreCall<'_>, sub_request: ClientId, message: &[u8]) {
    if let Some(client) = peers.clients.get_mut(sub_request) {
        client.input.buffer(message);
        call.steps.push(Step::Input(sub_request));
    }
}

/// Takes the next step of a COPY, once all sub-requests have started. Returns `false` if there
/// was none.
pub(super) fn advance(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId) -> bool {
    let Some(phase) = phase(&peers.clients, id) else { return false };
    let fan_out = peers.clients.get(id).and_then(|client| client.fan_out.as_ref());
    let Some(fan_out) = fan_out else { return false };
    let (has_failed, is_over) = (fan_out.merger.has_failed(), fan_out.merger.is_done());
    match phase {
        CopyPhase::Starting | CopyPhase::Receiving if has_failed => {
            set_phase(peers, call, id, CopyPhase::Finishing);
        }
        CopyPhase::Starting if fan_out.merger.accepts_copy() => {
            set_phase(peers, call, id, CopyPhase::Receiving);
            peers.update_pause(PeerId::Client(id), call);
            call.steps.push(Step::Input(id));
        }
        CopyPhase::Finishing if has_failed || is_over => {
            if has_failed {
                let mut message = Vec::new();
                encode::copy_fail(&mut message, b"another shard failed").expect(NO_ZERO_BYTE);
                // A server whose CopyInResponse has not arrived may be in COPY mode too, where it
                // would discard the ROLLBACK. Outside COPY, servers ignore CopyFail.
                for sub_request in peers.clients.linked_sub_requests(id) {
                    send_to(peers, call, sub_request, &message);
                }
            }
            let Some(fan_out) = peers.fan_out_mut(id) else { return false };
            let mut out = Vec::new();
            fan_out.merger.expect_replies(ShardRequest::Commit);
            fan_out.merger.finish_disconnected(&mut out); // In case no shard is left to reply.
            peers.send_merged(id, &out, call);
            let sql: &[u8] = if has_failed { b"ROLLBACK" } else { b"COMMIT" };
            let mut message = Vec::new();
            encode::query(&mut message, sql).expect(NO_ZERO_BYTE);
            set_phase(peers, call, id, CopyPhase::Committing);
            for sub_request in peers.clients.linked_sub_requests(id) {
                send_to(peers, call, sub_request, &message);
            }
        }
        _ => return false,
    }
    true
}

/// Returns the phase of a client's fan-out COPY, if it runs one.
fn phase(clients: &Clients, id: ClientId) -> Option<CopyPhase> {
    let fan_out = clients.get(id)?.fan_out.as_ref()?;
    fan_out.copy.as_ref().map(|copying| copying.phase)
}

/// Returns the end of the message at `at`, if it is complete.
fn message_end(input: &[u8], at: usize) -> Option<usize> {
    let header = header_at(input, at).ok().flatten()?;
    let end = at + Header::BYTES + header.body_bytes as usize;
    (end <= input.len()).then_some(end)
}
