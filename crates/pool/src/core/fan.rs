//! Requests that are done on several shards: what each of them is sent, and how its answers are told apart.

use std::{slice, sync::Arc};

use howdah_route::{Asked, CopyFormat, FanOut, NoShardKey, Refusal, Route, Session, Shards};
use howdah_wire::{
    Frame,
    frontend::{Message, Target, encode},
};

use super::{
    ahead::Fans,
    route::{RoutingContext, SPREAD, Way},
};
use crate::{
    client::Client,
    spread::{FanOutRequest, Rows},
};

const IN_PARTS: Refusal = Refusal::Keyless(NoShardKey::Spread("are not given in parts"));
const BINARY: Refusal =
    Refusal::Keyless(NoShardKey::Spread("cannot be told from one another in a binary COPY"));

impl RoutingContext<'_> {
    /// A query string for several shards.
    pub(super) fn spread_query(
        &mut self,
        client: &mut Client,
        route: Route,
        sql: &[u8],
        bytes: usize,
    ) -> Way {
        let mut request = Vec::new();
        let mut query = |sql: &[u8]| {
            encode::query(&mut request, sql).map_err(|_| Refusal::Keyless(NoShardKey::Unreadable))
        };
        let settings = self.slot.router.settings();
        let (role, may_lead) = (route.role.into(), route.may_lead);
        let (shards, asked, copy) = match route.shards {
            Shards::Many { shards, how } => match query(sql) {
                Ok(()) => (shards, vec![Asked::Query(how)], None),
                Err(refusal) => return Way::Refused(refusal),
            },
            Shards::Copy(of) => {
                let Some(map) = settings.map.clone() else { return Way::Refused(Refusal::NoMap) };
                if of.format == CopyFormat::Binary {
                    return Way::Refused(BINARY);
                }
                if let Err(refusal) = query(b"BEGIN").and_then(|()| query(sql)) {
                    return Way::Refused(refusal);
                }
                let shards = (0..settings.shards).collect();
                let session = client.routing.as_ref().map(|routing| &routing.session);
                let same_encoding = session.is_some_and(Session::same_encoding);
                let rows = Rows { of, map, same_encoding };
                (shards, vec![Asked::Hidden, Asked::Copy], Some(rows))
            }
            Shards::Any | Shards::One(_) => return Way::Server,
        };
        let text_by_byte = settings.text_by_byte;
        Way::Spread(Box::new(FanOutRequest {
            shards,
            role,
            may_lead,
            request,
            asked,
            copy,
            bytes,
            text_by_byte,
        }))
    }

    /// A batch of the extended protocol for several shards, up to its Sync. Each Execute is preceded by a
    /// Describe, by which the types and formats of the answer are known.
    pub(super) fn spread_batch(&mut self, route: &Route, batch: &[u8], fans: &Fans<'_>) -> Way {
        let settings = self.slot.router.settings();
        let Shards::Many { shards, .. } = &route.shards else { return Way::Refused(SPREAD) };
        let (mut request, mut asked) = (Vec::with_capacity(batch.len() + 64), Vec::new());
        let mut rest = batch;
        let mut fans = fans.iter();
        let mut bound = Fans::new();
        while let Ok(Some((frame, behind))) = Frame::split(rest, u32::MAX) {
            let whole = &rest[..rest.len() - behind.len()];
            rest = behind;
            match step(frame, &mut fans, &mut bound, &mut request) {
                Ok(steps) => asked.extend(steps),
                Err(refusal) => return Way::Refused(refusal),
            }
            request.extend_from_slice(whole);
        }
        if !rest.is_empty() || !matches!(asked.last(), Some(Asked::Sync)) {
            return Way::Refused(IN_PARTS);
        }
        Way::Spread(Box::new(FanOutRequest {
            shards: shards.clone(),
            role: route.role.into(),
            may_lead: route.may_lead,
            request,
            asked,
            copy: None,
            bytes: batch.len(),
            text_by_byte: settings.text_by_byte,
        }))
    }
}

/// What the answers to a message are.
fn step<'a>(
    frame: Frame<'a>,
    fans: &mut slice::Iter<'_, (&'a [u8], Arc<FanOut>)>,
    bound: &mut Fans<'a>,
    request: &mut Vec<u8>,
) -> Result<Vec<Asked>, Refusal> {
    let message = Message::parse(frame).map_err(|_| Refusal::Keyless(NoShardKey::Unreadable))?;
    Ok(match message {
        Message::Parse(_) => vec![Asked::Parse],
        Message::Bind(_) => {
            // Each Bind of the batch is of such a read.
            bound.extend(fans.next().cloned());
            vec![Asked::Bind]
        }
        Message::Close(_) => vec![Asked::Close],
        Message::Describe(Target::Statement(_)) => vec![Asked::DescribeStatement],
        Message::Describe(Target::Portal(_)) => vec![Asked::DescribePortal],
        Message::Execute { max_rows: 1.., .. } => return Err(IN_PARTS),
        Message::Execute { portal, .. } => {
            let how = bound.iter().rev().find(|(name, _)| *name == portal).ok_or(SPREAD)?;
            encode::describe(request, Target::Portal(portal)).map_err(|_| SPREAD)?;
            vec![Asked::Look, Asked::Execute(Arc::clone(&how.1))]
        }
        Message::Sync => vec![Asked::Sync],
        _ => return Err(SPREAD),
    })
}
