//! Clients of poolers as rows of slots. A client has no name of its own, so a row stands on the one that had
//! its place before: poolers list them in the same order.

use std::sync::Arc;

use howdah_collect::{Held, PoolerClient};

use super::{
    bytes::{Damage, In, Out},
    slots::{self, Slot},
    texts::{Read, Written},
};
use crate::pooler::Pooled;

/// Most clients, and most poolers that did not answer; what is beyond is not kept.
const CLIENTS_MAX: usize = 100_000;
const TROUBLES_MAX: usize = 64;

/// User, database, state, address, port, application, microseconds waited, and process and port of the server
/// connection held. New ones are put at the end.
pub(super) type Slots = [Slot; 9];

/// Writes clients; `rows` are those of the frame before, and become those of this one.
pub(super) fn put(
    out: &mut Out,
    pooled: Option<&Pooled>,
    rows: &mut Vec<Slots>,
    texts: &mut Written,
    fresh: &mut Vec<Arc<str>>,
) {
    out.byte(u8::from(pooled.is_some()));
    let Some(pooled) = pooled else { return };
    out.count(pooled.troubles.len().min(TROUBLES_MAX));
    pooled.troubles.iter().take(TROUBLES_MAX).for_each(|trouble| out.text(trouble));
    let clients = &pooled.clients[..pooled.clients.len().min(CLIENTS_MAX)];
    out.count(clients.len());
    let mut now = Vec::with_capacity(clients.len());
    for (at, client) in clients.iter().enumerate() {
        let row = slots_of(client, &mut |text| texts.number(text, fresh));
        slots::put(out, &row, rows.get(at).unwrap_or(&Slots::default()), 0, 0);
        now.push(row);
    }
    *rows = now;
}

/// Reads what [`put`] wrote.
pub(super) fn take(
    input: &mut In<'_>,
    rows: &mut Vec<Slots>,
    texts: &Read,
) -> Result<Option<Pooled>, Damage> {
    // Before there were poolers a frame ended here.
    if input.0.is_empty() || input.byte()? == 0 {
        return Ok(None);
    }
    let troubles = (0..input.count(TROUBLES_MAX)?).map(|_| Ok(input.line()?.to_string()));
    let troubles = troubles.collect::<Result<_, Damage>>()?;
    let count = input.count(CLIENTS_MAX.min(input.0.len()))?;
    rows.resize(count, Slots::default());
    let mut clients = Vec::with_capacity(count);
    for row in rows {
        slots::take(input, row, 0, 0)?;
        clients.push(client_of(row, texts)?);
    }
    let mut pooled = Pooled::new(clients);
    pooled.troubles = troubles;
    Ok(Some(pooled))
}

fn slots_of(client: &PoolerClient, number: &mut impl FnMut(&Arc<str>) -> i64) -> Slots {
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    let us = |seconds: f64| (seconds * 1e6) as i64;
    [
        Some(number(&client.user)),
        Some(number(&client.database)),
        Some(number(&client.state)),
        Some(number(&client.address)),
        Some(client.port.into()),
        client.application.as_ref().map(&mut *number),
        client.waits.map(us),
        client.holds.map(|held| held.pid.into()),
        client.holds.map(|held| held.client_port.into()),
    ]
}

fn client_of(slots: &Slots, texts: &Read) -> Result<PoolerClient, Damage> {
    let word = |at: usize| texts.slot(slots[at]).map(Option::unwrap_or_default);
    let small = |at: usize| {
        slots[at].map(|number| number.try_into().map_err(|_| Damage::Reference)).transpose()
    };
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let waits = slots[6].map(|us| us as f64 / 1e6);
    let held = small(7)?.zip(small(8)?);
    Ok(PoolerClient {
        user: word(0)?,
        database: word(1)?,
        state: word(2)?,
        address: word(3)?,
        port: small(4)?.unwrap_or(0),
        application: texts.slot(slots[5])?,
        waits,
        holds: held.map(|(pid, client_port)| Held { pid, client_port }),
    })
}

#[test]
fn clients_come_back_with_what_they_hold() {
    let client = |port: i32| PoolerClient {
        user: "app".into(),
        state: "active".into(),
        address: "10.0.0.7".into(),
        port,
        application: Some("shop".into()),
        waits: (port % 2 == 0).then_some(0.25),
        holds: (port % 3 == 0).then_some(Held { pid: port, client_port: 7 }),
        ..PoolerClient::default()
    };
    let (mut written, mut read) = (Written::default(), Read::default());
    let (mut before, mut rows) = (Vec::new(), Vec::new());
    for count in [3, 10, 2] {
        let mut pooled = Pooled::new((0..count).map(client).collect());
        pooled.troubles = vec!["no answer".to_owned()];
        let (mut body, mut fresh) = (Out::default(), Vec::new());
        put(&mut body, Some(&pooled), &mut before, &mut written, &mut fresh);
        let mut texts = Out::default();
        super::texts::put(&mut texts, &fresh);
        read.take(&mut In(&texts.0)).unwrap();
        let back = take(&mut In(&body.0), &mut rows, &read).unwrap().unwrap();
        assert_eq!((back.clients, back.troubles), (pooled.clients, pooled.troubles));
    }
    assert!(take(&mut In(&[]), &mut rows, &read).unwrap().is_none());
}
