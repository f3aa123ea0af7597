//! Bugs that tests plant, to prove that the simulator detects them.
//!
//! The core contains none of them. Between two events, the functions here change what the core
//! believes, or do what a core with the bug would do. Only they, and few helpers of the simulation,
//! depend on the core's internals.

use std::{io::IoSlice, sync::Arc};

use howdah_route::shard::ShardMap;
use howdah_sql::StateKinds;
use howdah_wire::frontend::encode;

use crate::{
    ClientHandover, ClientId, ClientRefusal, ConnectionLimit, Core, CoreEvent, CoreIo, PeerId,
    PoolId, PoolSpec, ServerId, TargetRole, Time,
    call::Step,
    clients::leaving,
    engines::Engines,
    messages::outstanding::RequestKind,
    mirror::{outcome::DropReason, target::MirrorTarget},
    pinning::{check_query::StateRow, pin::SessionPin},
    prepared::parse_settings::Uncertainty,
    servers::rerouting,
    session::state::SessionStateFlags,
    state::{
        client::{ClientConnection, ClientKind, ClientState, InputHold},
        server::{ServerConnection, ServerState},
    },
};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    /// A server is assigned to another client while replies are still outstanding.
    CrossTalk,
    /// A released server is given to another client without resetting its session state.
    DirtyReuse,
    /// A server is assigned to another client while a CancelRequest to it is in flight.
    StrayCancel,
    /// Replies to Parse and Close that the pooler itself generates are sent twice.
    DoubleReply,
    /// Clients share statements that were parsed under different settings.
    ForeignLiterals,
    /// Servers are opened although a connection limit is reached.
    LimitBreach,
    /// Requests for the primary go to an arbitrary member.
    WriteToAnyMember,
    /// Connections to a replaced primary stay in use.
    Unfenced,
    /// Connections to unresponsive members stay in use.
    UnresponsiveKept,
    /// A request that waits for one shard is sent to another one.
    WrongShard,
    /// Requests for the primary of a shard go to an arbitrary member of the shard.
    ShardWriteToStandby,
    /// Connections to a replaced primary stay in use if it is not that of the first shard.
    ShardFailoverMissed,
    /// A client that moves to another process loses its prepared statements.
    TakeoverLosesStatements,
    /// A client that moves to another process loses its session parameters.
    TakeoverLosesParameters,
    /// A client that has moved to another process cannot cancel its statements.
    TakeoverLosesCancelKey,
    /// A client that moves to another process no longer listens.
    TakeoverLosesChannels,
    /// A client that moves to another process counts as its pool's user.
    TakeoverLosesUser,
    /// The connect query does not run again after a reset.
    ConnectQueryNotRepeated,
    /// A change of a parameter that servers do not report is not noticed before the next Parse.
    UnreportedSettingMissed,
    /// A change of a parameter is not noticed before the server has reported it.
    ReportedSettingMissed,
    /// A request for all shards runs on one of them twice, and on another one not at all.
    FanOutShardSkipped,
    /// A CancelRequest does not reach the shards on which a request runs.
    FanOutNotCancelled,
    /// Rows of a COPY are sent to shards other than those of their keys.
    CopyRowMisrouted,
    /// A COPY that has failed on one shard is committed on the others.
    FailedCopyCommitted,
    /// Replies of a mirror are sent to the client.
    MirrorReplies,
    /// An idle client is disconnected when its mirror fails.
    MirrorFailurePropagates,
    /// A client waits until its mirror has caught up.
    MirrorBlocksClient,
    /// A failed server login disconnects all clients that wait for a server.
    LoginFailureRefusesAll,
    /// Writes are rerouted like reads.
    WritesRerouted,
    /// A server is released while its session has state of a client in adaptive mode.
    PinMissed,
    /// A client remains pinned after its session's state is gone.
    PinNeverEnds,
    /// A setting that no server reports does not follow its client.
    SettingLost,
    /// A setting that no server reports remains for the next client of the server.
    SettingLeft,
    /// The server of a client that has loaded a library is not closed when the client leaves.
    LibraryLeft,
}

impl InjectedFault {
    pub(super) const ALL: [Self; 34] = [
        Self::CrossTalk,
        Self::DirtyReuse,
        Self::StrayCancel,
        Self::DoubleReply,
        Self::ForeignLiterals,
        Self::LimitBreach,
        Self::WriteToAnyMember,
        Self::Unfenced,
        Self::UnresponsiveKept,
        Self::WrongShard,
        Self::ShardWriteToStandby,
        Self::ShardFailoverMissed,
        Self::TakeoverLosesStatements,
        Self::TakeoverLosesParameters,
        Self::TakeoverLosesCancelKey,
        Self::TakeoverLosesChannels,
        Self::TakeoverLosesUser,
        Self::ConnectQueryNotRepeated,
        Self::UnreportedSettingMissed,
        Self::ReportedSettingMissed,
        Self::FanOutShardSkipped,
        Self::FanOutNotCancelled,
        Self::CopyRowMisrouted,
        Self::FailedCopyCommitted,
        Self::MirrorReplies,
        Self::MirrorFailurePropagates,
        Self::MirrorBlocksClient,
        Self::LoginFailureRefusesAll,
        Self::WritesRerouted,
        Self::PinMissed,
        Self::PinNeverEnds,
        Self::SettingLost,
        Self::SettingLeft,
        Self::LibraryLeft,
    ];

    /// Whether the bug is the likely cause of a violation that a simulation has found.
    pub(super) fn explains(self, violation: &str) -> bool {
        let parts: &[&str] = match self {
            Self::CrossTalk => &["received", "expected"],
            Self::DirtyReuse => &["finds", "of Some"],
            Self::StrayCancel => &["a cancel of", "hit a statement of"],
            Self::DoubleReply => &["received", "\\x00\\x00\\x00\\x04, expected"],
            Self::ForeignLiterals => &["received D", "/safe_encoding,c"],
            Self::LimitBreach => &["the limit is"],
            Self::WriteToAnyMember | Self::ShardWriteToStandby => &["requires the primary"],
            Self::Unfenced | Self::ShardFailoverMissed => &["which was replaced"],
            Self::UnresponsiveKept => &["is still in use", "is unresponsive"],
            Self::WrongShard => &["runs on shard"],
            Self::TakeoverLosesStatements => &["received E", "C26000"],
            Self::TakeoverLosesParameters => &["received D", "expected Some(\"D"],
            Self::TakeoverLosesCancelKey => &["awaits", "forever"],
            Self::TakeoverLosesChannels => &["listens to [] instead of"],
            Self::TakeoverLosesUser => &["is reported as None"],
            Self::ConnectQueryNotRepeated => &["without the effect of the connect query"],
            Self::UnreportedSettingMissed => &["received D", "/off,c"],
            Self::ReportedSettingMissed => &["received D", "/safe_encoding,c"],
            Self::FanOutShardSkipped => &["received", "expected"],
            Self::FanOutNotCancelled => &["awaits Some", "forever"],
            Self::CopyRowMisrouted => &["is copied to shard"],
            Self::FailedCopyCommitted => &["has failed, but committed it"],
            Self::MirrorReplies => &["received", "expected"],
            Self::MirrorFailurePropagates => &["was disconnected without a failure"],
            Self::MirrorBlocksClient => &["awaits", "forever"],
            Self::LoginFailureRefusesAll => &["was disconnected because a login failed"],
            Self::WritesRerouted => &["is run by", "and by"],
            Self::PinMissed => &["finds", "\"table\"", "of Some"],
            Self::PinNeverEnds => &["is linked to a client without state"],
            Self::SettingLost => &["received D", "work_mem=4", "expected", "work_mem="],
            Self::SettingLeft => &["received D", "work_mem=", "expected", "work_mem=4"],
            Self::LibraryLeft => &["finds", "\"library\"", "of Some"],
        };
        parts.iter().all(|part| violation.contains(part))
    }
}

/// Changes the settings of a pool that the core is about to get.
pub(super) fn alter_spec(fault: Option<InjectedFault>, spec: &mut PoolSpec) {
    if fault == Some(InjectedFault::LimitBreach) {
        spec.server_limits = [ConnectionLimit::new(1000)].into();
    }
    if fault == Some(InjectedFault::ConnectQueryNotRepeated) {
        spec.connect_query = None;
    }
}

/// Changes the state of a client that moves to another process.
pub(super) fn alter_handover(fault: Option<InjectedFault>, handover: &mut ClientHandover) {
    match fault {
        Some(InjectedFault::TakeoverLosesStatements) => handover.statements.clear(),
        Some(InjectedFault::TakeoverLosesParameters) => handover.parameters.clear(),
        Some(InjectedFault::TakeoverLosesChannels) => handover.channels.clear(),
        Some(InjectedFault::TakeoverLosesUser) => handover.user = None,
        _ => {}
    }
}

/// Changes what a core believes before it handles an event of any kind.
pub(super) fn before_event(
    fault: Option<InjectedFault>,
    core: &mut Core,
    now: Time,
    io: &mut dyn CoreIo,
) {
    let Some(fault) = fault else { return };
    match fault {
        InjectedFault::CrossTalk => assign_busy_servers(core, now, io),
        InjectedFault::DirtyReuse => {
            for id in servers(core) {
                server(core, id).session_state = SessionStateFlags::NONE;
            }
        }
        InjectedFault::StrayCancel => {
            for id in servers(core) {
                server(core, id).cancels_in_flight = 0;
            }
        }
        InjectedFault::ForeignLiterals => {
            let settings = core.engines().sessions.statements.parse_settings(&Default::default());
            for id in servers(core) {
                let state = &mut server(core, id).parameters.parse_state;
                state.uncertainty = Uncertainty::None;
                state.set_current(Arc::clone(&settings));
            }
        }
        InjectedFault::WriteToAnyMember => {
            for id in clients(core) {
                let client = client(core, id);
                client.member.role = TargetRole::Any;
                client.member.requested_role = Some(TargetRole::Any.into());
            }
        }
        InjectedFault::ShardWriteToStandby => {
            for id in clients(core) {
                let routing = client(core, id).routing.as_mut();
                if let Some((role, Some(_))) = routing.and_then(|it| it.fixed_route.as_mut()) {
                    *role = TargetRole::Any;
                }
            }
        }
        InjectedFault::Unfenced
        | InjectedFault::ShardFailoverMissed
        | InjectedFault::UnresponsiveKept => {
            hides_cluster_changes(Some(fault), core);
        }
        InjectedFault::TakeoverLosesCancelKey => {
            core.engines().peers.clients.clear_takeover_keys();
        }
        InjectedFault::UnreportedSettingMissed => trust_settings(core, Uncertainty::Unreported),
        InjectedFault::ReportedSettingMissed => trust_settings(core, Uncertainty::Reported),
        InjectedFault::FanOutShardSkipped => {
            for id in clients(core) {
                let Some(fan_out) = &mut client(core, id).fan_out else { continue };
                let shards = &mut fan_out.request.shards;
                if fan_out.sub_requests.len() < shards.len() {
                    *shards.last_mut().expect("there are several") = shards[0];
                }
            }
        }
        InjectedFault::FanOutNotCancelled => {
            for id in servers(core) {
                if is_linked_to_sub_request(core, id) {
                    server(core, id).cancel_key = None;
                }
            }
        }
        InjectedFault::CopyRowMisrouted => {
            for id in clients(core) {
                let fan_out = client(core, id).fan_out.as_mut();
                let Some(copy) = fan_out.and_then(|it| it.copy.as_mut()) else { continue };
                copy.map = ShardMap::sha1(copy.map.shards()).expect("there are shards");
            }
        }
        InjectedFault::WrongShard => swap_queues_of_shards(core),
        InjectedFault::SettingLost => {
            for id in clients(core) {
                let Engines { peers, sessions, .. } = core.engines();
                let client = peers.clients.get_mut(id).expect("the client is connected");
                let others = client.parameters.list().iter().filter(|it| *it.name != *b"work_mem");
                client.parameters = sessions.parameters.intern(others.cloned());
            }
        }
        InjectedFault::SettingLeft => {
            for id in servers(core) {
                if server(core, id).state == ServerState::Idle {
                    server(core, id).parameters.handle_reset();
                }
            }
        }
        InjectedFault::LibraryLeft => {
            for id in servers(core) {
                let server = server(core, id);
                let needs_close = server.pin.as_deref().is_some_and(SessionPin::needs_close);
                if server.is_quiescent() && needs_close {
                    server.pin = None;
                }
            }
        }
        InjectedFault::WritesRerouted => reroute_writes(core, now, io),
        _ => {}
    }
}

/// Whether a server is linked to a client that could release it: all requests are answered, and no
/// input waits.
pub(super) fn is_linked_at_rest(core: &Core, id: ServerId) -> bool {
    let peers = &core.engines.peers;
    let client = core.linked_client(id).and_then(|id| peers.clients.get(id));
    let is_at_rest = |client: &ClientConnection| {
        client.is_external()
            && client.input_hold == InputHold::None
            && !client.has_unprocessed_input()
    };
    client.is_some_and(is_at_rest)
        && peers.servers.get(id).is_some_and(ServerConnection::is_quiescent)
}

fn is_linked_to_sub_request(core: &Core, id: ServerId) -> bool {
    let client = core.linked_client(id).and_then(|id| core.engines.peers.clients.get(id));
    client.is_some_and(|client| client.sub_request().is_some())
}

/// Changes bytes that the core sends to a server.
pub(super) fn alter_sent(
    fault: Option<InjectedFault>,
    core: &Core,
    to: PeerId,
    bytes: &mut Vec<u8>,
) {
    let PeerId::Server(id) = to else { return };
    if fault == Some(InjectedFault::FailedCopyCommitted)
        && is_linked_to_sub_request(core, id)
        && memchr::memmem::find(bytes, b"ROLLBACK\0").is_some()
    {
        bytes.clear();
        encode::query(bytes, b"COMMIT").expect("the text has no zero byte");
    }
}

/// Changes what a core believes before it gets bytes of a server, or sends bytes in its place.
pub(super) fn before_server_bytes(
    fault: Option<InjectedFault>,
    core: &mut Core,
    id: ServerId,
    bytes: &[u8],
    io: &mut dyn CoreIo,
) {
    let Some(client) = core.linked_client(id) else { return };
    match fault {
        Some(InjectedFault::PinMissed) => {
            if let Some(pin) = &mut server(core, id).pin {
                pin.finish_check();
            }
        }
        Some(InjectedFault::PinNeverEnds) => {
            if let Some(pin) = server(core, id).pin.as_mut().filter(|pin| pin.is_pinned()) {
                pin.record_row(StateRow::Found(StateKinds::TEMPORARY, b"t"));
            }
        }
        Some(InjectedFault::DoubleReply) => {
            let front = server(core, id).outstanding.front().map(|request| &request.kind);
            if let Some(reply) = front.and_then(RequestKind::local_reply) {
                core.engines().peers.to_client.push_with(|buf| buf.extend_from_slice(&reply));
            }
        }
        Some(InjectedFault::MirrorReplies) => {
            if let Some(client) = mirrored_client(core, client) {
                let _ = io.send(PeerId::Client(client), &[IoSlice::new(bytes)]);
            }
        }
        _ => {}
    }
}

/// Whether the core ignores that its clusters have changed. It then believes that it has handled
/// the change already.
pub(super) fn hides_cluster_changes(fault: Option<InjectedFault>, core: &mut Core) -> bool {
    let is_hidden = |spec: &PoolSpec| {
        spec.member.as_ref().is_some_and(|member| match fault {
            Some(InjectedFault::Unfenced) => member.state.is_fenced(),
            Some(InjectedFault::ShardFailoverMissed) => {
                member.shard > 0 && member.state.is_fenced()
            }
            Some(InjectedFault::UnresponsiveKept) => member.state.is_unresponsive(),
            _ => false,
        })
    };
    let is_hidden = core.engines().pools.iter().any(|(_, pool)| is_hidden(&pool.spec));
    if is_hidden {
        let pools = &mut core.engines().pools;
        for id in pools.owner_pools() {
            if let Some(balancers) = &mut pools.pool(id).balancers {
                balancers.refresh();
            }
        }
    }
    is_hidden
}

/// Whether a client's input is not passed to the core yet, because the client's mirror has work.
pub(super) fn blocks_client(fault: Option<InjectedFault>, core: &mut Core, id: ClientId) -> bool {
    let Engines { peers, mirrors, .. } = core.engines();
    let Some(ClientKind::Mirrored(mirrored)) = peers.clients.get(id).map(|client| &client.kind)
    else {
        return false;
    };
    let mut queues = mirrored.queues.iter().filter_map(|queue| mirrors.queue(*queue));
    fault == Some(InjectedFault::MirrorBlocksClient)
        && queues.any(|queue| queue.running.is_some() || !queue.waiting.is_empty())
}

/// Returns the number of transactions that mirrors have failed to run, if the fault depends on it.
pub(super) fn mirror_failures(fault: Option<InjectedFault>, core: &mut Core) -> u64 {
    if fault != Some(InjectedFault::MirrorFailurePropagates) {
        return 0;
    }
    let mirrors = core.engines().pools.iter().flat_map(|(_, pool)| pool.spec.mirrors.iter());
    let failures = |target: &MirrorTarget| {
        let dropped = target.mirror.report().dropped;
        dropped[DropReason::ConnectionLost as usize] + dropped[DropReason::Unreachable as usize]
    };
    mirrors.map(failures).sum()
}

/// Disconnects the idle clients with a mirror if mirrors have failed since there were `before`
/// failures.
pub(super) fn after_event(
    fault: Option<InjectedFault>,
    core: &mut Core,
    before: u64,
    io: &mut dyn CoreIo,
) {
    if mirror_failures(fault, core) == before {
        return;
    }
    for id in clients(core) {
        let client = client(core, id);
        let is_mirrored = matches!(client.kind, ClientKind::Mirrored(_));
        if is_mirrored && client.state == ClientState::Idle && !client.has_unprocessed_input() {
            refuse(core, id, &ClientRefusal::ServerLost, io);
        }
    }
}

/// Disconnects all waiting clients of a pool without servers, after a login has failed.
pub(super) fn after_failed_login(
    fault: Option<InjectedFault>,
    core: &mut Core,
    pool: PoolId,
    io: &mut dyn CoreIo,
) {
    if fault != Some(InjectedFault::LoginFailureRefusesAll)
        || core.engines().pools.pool(pool).servers > 0
    {
        return;
    }
    let message = "starting up".to_owned();
    let refusal = ClientRefusal::ServerSetup { sqlstate: *b"57P03", message };
    for client in std::mem::take(&mut core.engines().pools.pool(pool).waiting) {
        refuse(core, client, &refusal, io);
    }
}

/// Assigns servers with outstanding replies to waiting clients.
fn assign_busy_servers(core: &mut Core, now: Time, io: &mut dyn CoreIo) {
    for id in servers(core) {
        let Some(client_id) = core.linked_client(id) else { continue };
        let server = server(core, id);
        if server.outstanding.is_empty() || server.batch.is_open || server.batch.is_copying_in {
            continue;
        }
        let pool = server.pool;
        let client = client(core, client_id);
        let is_between_requests = client.is_external()
            && client.input.is_at_boundary()
            && client.input_hold == InputHold::None;
        if !is_between_requests || core.engines().pools.pool(pool).waiting.is_empty() {
            continue;
        }
        self::client(core, client_id).state = ClientState::Idle;
        self::server(core, id).state = ServerState::Idle;
        core.engines().pools.pool(pool).idle.push_back(id);
        core.handle(CoreEvent::ServersAvailable(pool), now, io);
    }
}

/// Makes the core believe that it knows the parse settings although it has this uncertainty.
fn trust_settings(core: &mut Core, uncertainty: Uncertainty) {
    for id in servers(core) {
        let state = &mut server(core, id).parameters.parse_state;
        if state.max_uncertainty() == uncertainty && state.uncertainty == uncertainty {
            state.uncertainty = Uncertainty::None;
        }
    }
}

/// Moves waiting clients from one shard's queue to another's.
fn swap_queues_of_shards(core: &mut Core) {
    let shards =
        core.engines().pools.iter().map(|(_, pool)| pool).find(|pool| pool.spec.clusters.len() > 1);
    let Some(clusters) = shards.map(|pool| Arc::clone(&pool.spec.clusters)) else { return };
    let (one, other) = (clusters[0].members[0].pool, clusters[1].members[0].pool);
    let queue = std::mem::take(&mut core.engines().pools.pool(one).waiting);
    core.engines().pools.pool(one).waiting =
        std::mem::replace(&mut core.engines().pools.pool(other).waiting, queue);
    for pool in [one, other] {
        for id in core.engines().pools.pool(pool).waiting.clone() {
            if let Some(client) = core.engines().peers.clients.get_mut(id) {
                client.pool = pool;
            }
        }
    }
}

/// Reroutes requests from members that fail health checks, whether they write or not.
fn reroute_writes(core: &mut Core, now: Time, io: &mut dyn CoreIo) {
    for id in servers(core) {
        let Some(client_id) = core.linked_client(id) else { continue };
        let server = server(core, id);
        let pool = server.pool;
        let is_single_request = !server.batch.unanswered_request.is_empty()
            && server.outstanding.is_single_client_request()
            && !server.batch.is_open
            && server.restore.spliced_query.is_none()
            && server.pending_actions.is_none()
            && !server.batch.is_copying_in;
        let member = core.engines().pools.pool(pool).spec.member.as_ref();
        let is_failing = member.is_some_and(|member| member.state.is_failing_checks());
        let client = client(core, client_id);
        if is_single_request
            && is_failing
            && client.is_external()
            && client.input_hold == InputHold::None
            && !client.has_unprocessed_input()
        {
            core.run(now, io, |Engines { peers, pools, .. }, call| {
                rerouting::reroute_request(peers, pools, call, client_id, id);
            });
        }
    }
}

/// Returns the client whose transaction a mirror client runs, if it is still connected.
fn mirrored_client(core: &mut Core, mirror_client: ClientId) -> Option<ClientId> {
    let clients = &core.engines().peers.clients;
    let ClientKind::Internal(internal) = &clients.get(mirror_client)?.kind else { return None };
    let Step::MirrorQueue(queue) = internal.on_progress() else { return None };
    let is_its = |client: &ClientConnection| match &client.kind {
        ClientKind::Mirrored(mirrored) => mirrored.queues.contains(&queue),
        _ => false,
    };
    clients.iter().find(|(_, client)| is_its(client)).map(|(id, _)| id)
}

fn refuse(core: &mut Core, client: ClientId, refusal: &ClientRefusal, io: &mut dyn CoreIo) {
    core.run(Time::default(), io, |Engines { peers, pools, .. }, call| {
        leaving::refuse(peers, pools, call, client, refusal);
    });
}

fn clients(core: &mut Core) -> Vec<ClientId> {
    core.engines().peers.clients.iter().map(|(id, _)| id).collect()
}

fn servers(core: &mut Core) -> Vec<ServerId> {
    let servers = &core.engines().peers.servers;
    (0..servers.slots()).filter_map(|slot| servers.occupant(slot)).map(|(id, _)| id).collect()
}

fn client(core: &mut Core, id: ClientId) -> &mut ClientConnection {
    core.engines().peers.clients.get_mut(id).expect("the client is connected")
}

fn server(core: &mut Core, id: ServerId) -> &mut ServerConnection {
    core.engines().peers.servers.get_mut(id).expect("the server is connected")
}
