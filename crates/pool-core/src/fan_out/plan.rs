//! Plans fan-out requests: the messages to send to each shard, and the replies to expect.

use std::{slice, sync::Arc};

use howdah_route::{
    CopyRowFormat, FanOut, NoShardKey, Refusal, Route, RouteSession, ShardRequest, ShardTarget,
};
use howdah_wire::{
    Frame,
    frontend::{DescribeTarget, FrontendMessage, encode},
};

use crate::{
    fan_out::active::{CopyRowRouting, FanOutRequest},
    messages::batch_plan::FanOutPlans,
    routing::context::{Dispatch, FAN_OUT_IN_BATCH, RoutingContext},
    state::client::ClientConnection,
};

const PARTIAL_EXECUTE: Refusal = Refusal::UnknownShard(NoShardKey::FanOutNotAllowed(
    "an Execute with a row limit does not support",
));
const BINARY_COPY: Refusal =
    Refusal::UnknownShard(NoShardKey::FanOutNotAllowed("a binary COPY does not support"));

impl RoutingContext<'_> {
    /// Plans a query string that runs on several shards.
    pub(crate) fn plan_query_fan_out(
        &mut self,
        client: &mut ClientConnection,
        route: Route,
        sql: &[u8],
        bytes: usize,
    ) -> Dispatch {
        let mut request = Vec::new();
        let mut query = |sql: &[u8]| {
            encode::query(&mut request, sql)
                .map_err(|_| Refusal::UnknownShard(NoShardKey::Unreadable))
        };
        let settings = self.slot.router.settings();
        let (role, may_lead) = (route.role.into(), route.may_use_primary);
        let (shards, asked, copy) = match route.shards {
            ShardTarget::Many { shards, fan_out: how } => match query(sql) {
                Ok(()) => (shards, vec![ShardRequest::Query(how)], None),
                Err(refusal) => return Dispatch::Refused(refusal),
            },
            ShardTarget::Copy(of) => {
                let Some(map) = settings.map.clone() else {
                    return Dispatch::Refused(Refusal::NoMap);
                };
                if of.format == CopyRowFormat::Binary {
                    return Dispatch::Refused(BINARY_COPY);
                }
                if let Err(refusal) = query(b"BEGIN").and_then(|()| query(sql)) {
                    return Dispatch::Refused(refusal);
                }
                let shards = (0..settings.shards).collect();
                let session = client.routing.as_ref().map(|routing| &routing.session);
                let same_encoding = session.is_some_and(RouteSession::encodings_match);
                let rows = CopyRowRouting { statement: of, map, has_same_encoding: same_encoding };
                (shards, vec![ShardRequest::HiddenQuery, ShardRequest::Copy], Some(rows))
            }
            ShardTarget::Any | ShardTarget::One(_) => return Dispatch::Server,
        };
        let text_by_byte = settings.text_by_byte;
        Dispatch::FanOut(Box::new(FanOutRequest {
            shards,
            role,
            can_use_primary: may_lead,
            messages: request,
            expected_replies: asked,
            copy,
            bytes,
            has_byte_collation: text_by_byte,
        }))
    }

    /// Plans an extended-protocol batch, up to its Sync, that runs on several shards. Each Execute
    /// is preceded by a Describe, which tells the merger the types and formats of the columns.
    pub(crate) fn plan_batch_fan_out(
        &mut self,
        route: &Route,
        batch: &[u8],
        fan_outs: &FanOutPlans<'_>,
    ) -> Dispatch {
        let settings = self.slot.router.settings();
        let ShardTarget::Many { shards, .. } = &route.shards else {
            return Dispatch::Refused(FAN_OUT_IN_BATCH);
        };
        let (mut request, mut asked) = (Vec::with_capacity(batch.len() + 64), Vec::new());
        let mut rest = batch;
        let mut fan_outs = fan_outs.iter();
        let mut bound = FanOutPlans::new();
        while let Ok(Some((frame, later))) = Frame::split(rest, u32::MAX) {
            let whole = &rest[..rest.len() - later.len()];
            rest = later;
            match plan_message(frame, &mut fan_outs, &mut bound, &mut request) {
                Ok(steps) => asked.extend(steps),
                Err(refusal) => return Dispatch::Refused(refusal),
            }
            request.extend_from_slice(whole);
        }
        if !rest.is_empty() || !matches!(asked.last(), Some(ShardRequest::Sync)) {
            return Dispatch::Refused(PARTIAL_EXECUTE);
        }
        Dispatch::FanOut(Box::new(FanOutRequest {
            shards: shards.clone(),
            role: route.role.into(),
            can_use_primary: route.may_use_primary,
            messages: request,
            expected_replies: asked,
            copy: None,
            bytes: batch.len(),
            has_byte_collation: settings.text_by_byte,
        }))
    }
}

/// Returns the replies to expect for a message. Before an Execute, appends to `request` the
/// Describe that the merger needs.
fn plan_message<'a>(
    frame: Frame<'a>,
    fan_outs: &mut slice::Iter<'_, (&'a [u8], Arc<FanOut>)>,
    bound: &mut FanOutPlans<'a>,
    request: &mut Vec<u8>,
) -> Result<Vec<ShardRequest>, Refusal> {
    let message =
        FrontendMessage::parse(frame).map_err(|_| Refusal::UnknownShard(NoShardKey::Unreadable))?;
    Ok(match message {
        FrontendMessage::Parse(_) => vec![ShardRequest::Parse],
        FrontendMessage::Bind(_) => {
            // Every Bind of the batch runs on several shards, so plans and Binds correspond one to
            // one.
            bound.extend(fan_outs.next().cloned());
            vec![ShardRequest::Bind]
        }
        FrontendMessage::Close(_) => vec![ShardRequest::Close],
        FrontendMessage::Describe(DescribeTarget::Statement(_)) => {
            vec![ShardRequest::DescribeStatement]
        }
        FrontendMessage::Describe(DescribeTarget::Portal(_)) => vec![ShardRequest::DescribePortal],
        FrontendMessage::Execute { max_rows: 1.., .. } => return Err(PARTIAL_EXECUTE),
        FrontendMessage::Execute { portal, .. } => {
            let how =
                bound.iter().rev().find(|(name, _)| *name == portal).ok_or(FAN_OUT_IN_BATCH)?;
            encode::describe(request, DescribeTarget::Portal(portal))
                .map_err(|_| FAN_OUT_IN_BATCH)?;
            vec![ShardRequest::HiddenDescribe, ShardRequest::Execute(Arc::clone(&how.1))]
        }
        FrontendMessage::Sync => vec![ShardRequest::Sync],
        _ => return Err(FAN_OUT_IN_BATCH),
    })
}
