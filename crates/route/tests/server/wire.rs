//! Sessions that expose the raw bytes of the protocol.

#![allow(clippy::disallowed_types, reason = "a test is a caller, and owns the socket")]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use howdah_lab::Cluster;
use howdah_route::Merger;
use howdah_wire::{Frame, backend::BackendMessage, frontend::encode, startup};

use super::{ResultRows, StatementRandom};

/// A session on a server that trusts connections by its socket.
pub(crate) struct RawSession(UnixStream);

impl RawSession {
    pub(crate) fn new(cluster: &Cluster, search_path: &str) -> Self {
        let path = cluster.socket_dir().join(format!(".s.PGSQL.{}", cluster.port()));
        let mut wire = Self(UnixStream::connect(path).unwrap());
        let mut hello = Vec::new();
        let options = format!("-c search_path={search_path},public");
        let parameters: [(&[u8], &[u8]); 3] =
            [(b"user", b"postgres"), (b"database", b"postgres"), (b"options", options.as_bytes())];
        startup::startup(&mut hello, startup::ProtocolVersion::V3_0, parameters).unwrap();
        wire.send(&hello);
        wire
    }

    /// The reply up to the next ReadyForQuery.
    pub(crate) fn send(&mut self, request: &[u8]) -> Vec<u8> {
        self.0.write_all(request).unwrap();
        let mut answer = Vec::new();
        loop {
            let begin = answer.len();
            answer.resize(begin + 5, 0);
            self.0.read_exact(&mut answer[begin..]).unwrap();
            let bytes: [u8; 4] = answer[begin + 1..].try_into().unwrap();
            answer.resize(begin + 1 + u32::from_be_bytes(bytes) as usize, 0);
            self.0.read_exact(&mut answer[begin + 5..]).unwrap();
            if answer[begin] == b'Z' {
                return answer;
            }
        }
    }

    pub(crate) fn query(&mut self, sql: &str) -> Vec<u8> {
        let mut request = Vec::new();
        encode::query(&mut request, sql.as_bytes()).unwrap();
        self.send(&request)
    }
}

/// The client's bytes if shards send these replies at the same time, in pieces of any length.
pub(crate) fn merged(
    merger: &mut Merger,
    answers: &[Vec<u8>],
    random: &mut StatementRandom,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rests: Vec<_> = answers.iter().map(Vec::as_slice).collect();
    let piece_bytes = [1, 30, 500, 100_000][random.up_to(4)];
    while rests.iter().any(|rest| !rest.is_empty()) {
        let shard = random.up_to(rests.len());
        let end = rests[shard].len().min(1 + random.up_to(piece_bytes));
        let (piece, rest) = rests[shard].split_at(end);
        rests[shard] = rest;
        merger.push(shard, piece, &mut out);
    }
    out
}

/// Kind and body of each message.
pub(crate) fn messages(mut bytes: &[u8]) -> Vec<(char, &[u8])> {
    let mut messages = Vec::new();
    while let Some((frame, rest)) = Frame::split(bytes, u32::MAX >> 1).unwrap() {
        messages.push((char::from(frame.tag.0), frame.body));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "incomplete message at the end");
    messages
}

/// The rows of a reply, or its error.
pub(crate) fn rows(mut bytes: &[u8]) -> Result<ResultRows, String> {
    let mut rows = Vec::new();
    while let Some((frame, rest)) = Frame::split(bytes, u32::MAX >> 1).unwrap() {
        let text = |cell: Option<&[u8]>| cell.map(|it| String::from_utf8(it.to_vec()).unwrap());
        match BackendMessage::parse(frame).unwrap() {
            BackendMessage::DataRow(cells) => rows.push(cells.map(text).collect()),
            BackendMessage::ErrorResponse(error) => return Err(error.to_string()),
            _ => {}
        }
        bytes = rest;
    }
    Ok(rows)
}
