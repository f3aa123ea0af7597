//! Encodes pooler clients as rows of fields.
//!
//! Nothing identifies a client across samples. A row is therefore encoded relative to the row at
//! the same position in the previous frame: poolers keep the order of their lists.

use std::sync::Arc;

use howdah_codec::{ByteReader, ByteWriter as _};
use howdah_collect::{PooledBackend, PoolerClient};

use super::{
    delta::{self, DeltaField},
    error::CorruptFrame,
    texts::{TextReader, TextWriter, read_line},
};
use crate::pooler::PooledClients;

/// Maximum numbers of clients and of failed poolers in a frame. Further ones are not recorded.
const CLIENTS_MAX: usize = 100_000;
const PROBLEMS_MAX: usize = 64;

/// The fields of a client: user, database, state, address, port, application, microseconds waited,
/// and process and port of the linked server connection. New fields are appended.
pub(super) type ClientFields = [DeltaField; 9];

/// Encodes the poolers' clients and problems. `rows` are those of the last frame with poolers, and
/// are replaced by those of this frame.
pub(super) fn encode(
    out: &mut Vec<u8>,
    pooled: Option<&PooledClients>,
    rows: &mut Vec<ClientFields>,
    texts: &mut TextWriter,
    new_texts: &mut Vec<Arc<str>>,
) {
    out.push(u8::from(pooled.is_some()));
    let Some(pooled) = pooled else { return };
    out.write_count(pooled.problems.len().min(PROBLEMS_MAX));
    pooled.problems.iter().take(PROBLEMS_MAX).for_each(|problem| out.write_text(problem));
    let clients = &pooled.clients[..pooled.clients.len().min(CLIENTS_MAX)];
    out.write_count(clients.len());
    let mut now = Vec::with_capacity(clients.len());
    for (at, client) in clients.iter().enumerate() {
        let row = to_fields(client, &mut |text| texts.number(text, new_texts));
        delta::encode(out, &row, rows.get(at).unwrap_or(&ClientFields::default()), 0, 0);
        now.push(row);
    }
    *rows = now;
}

/// Decodes the output of [`encode`].
pub(super) fn decode(
    input: &mut ByteReader<'_>,
    rows: &mut Vec<ClientFields>,
    texts: &TextReader,
) -> Result<Option<PooledClients>, CorruptFrame> {
    // Older versions without pooler support end the frame here.
    if input.is_empty() || input.byte()? == 0 {
        return Ok(None);
    }
    let problems = (0..input.count_up_to(PROBLEMS_MAX)?).map(|_| Ok(read_line(input)?.to_string()));
    let problems = problems.collect::<Result<_, CorruptFrame>>()?;
    let count = input.count_up_to(CLIENTS_MAX.min(input.remaining()))?;
    rows.resize(count, ClientFields::default());
    let mut clients = Vec::with_capacity(count);
    for row in rows {
        delta::decode(input, row, 0, 0)?;
        clients.push(from_fields(row, texts)?);
    }
    let mut pooled = PooledClients::new(clients);
    pooled.problems = problems;
    Ok(Some(pooled))
}

fn to_fields(client: &PoolerClient, number: &mut impl FnMut(&Arc<str>) -> i64) -> ClientFields {
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    let us = |seconds: f64| (seconds * 1e6) as i64;
    [
        Some(number(&client.user)),
        Some(number(&client.database)),
        Some(number(&client.state)),
        Some(number(&client.address)),
        Some(client.port.into()),
        client.application.as_ref().map(&mut *number),
        client.wait_seconds.map(us),
        client.backend.map(|pooled_backend| pooled_backend.pid.into()),
        client.backend.map(|pooled_backend| pooled_backend.client_port.into()),
    ]
}

fn from_fields(fields: &ClientFields, texts: &TextReader) -> Result<PoolerClient, CorruptFrame> {
    let word = |at: usize| texts.optional_line(fields[at]).map(Option::unwrap_or_default);
    let small = |at: usize| {
        fields[at].map(|number| number.try_into().map_err(|_| CorruptFrame::Reference)).transpose()
    };
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let waits = fields[6].map(|us| us as f64 / 1e6);
    let pooled_backend = small(7)?.zip(small(8)?);
    Ok(PoolerClient {
        user: word(0)?,
        database: word(1)?,
        state: word(2)?,
        address: word(3)?,
        port: small(4)?.unwrap_or(0),
        application: texts.optional_line(fields[5])?,
        wait_seconds: waits,
        backend: pooled_backend.map(|(pid, client_port)| PooledBackend { pid, client_port }),
    })
}

#[test]
fn pooled_clients_round_trip() {
    let client = |port: i32| PoolerClient {
        user: "app".into(),
        state: "active".into(),
        address: "10.0.0.7".into(),
        port,
        application: Some("shop".into()),
        wait_seconds: (port % 2 == 0).then_some(0.25),
        backend: (port % 3 == 0).then_some(PooledBackend { pid: port, client_port: 7 }),
        ..PoolerClient::default()
    };
    let (mut written, mut read) = (TextWriter::default(), TextReader::default());
    let (mut before, mut rows) = (Vec::new(), Vec::new());
    for count in [3, 10, 2] {
        let mut pooled = PooledClients::new((0..count).map(client).collect());
        pooled.problems = vec!["no answer".to_owned()];
        let (mut body, mut new_texts) = (Vec::new(), Vec::new());
        encode(&mut body, Some(&pooled), &mut before, &mut written, &mut new_texts);
        let mut texts = Vec::new();
        super::texts::encode(&mut texts, &new_texts);
        read.decode(&mut ByteReader::new(&texts)).unwrap();
        let back = decode(&mut ByteReader::new(&body), &mut rows, &read).unwrap().unwrap();
        assert_eq!((back.clients, back.problems), (pooled.clients, pooled.problems));
    }
    assert!(decode(&mut ByteReader::new(&[]), &mut rows, &read).unwrap().is_none());
}
