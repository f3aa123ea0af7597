//! Draws a simulation from its seed: pools, workers, clients and faults.

use std::{
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    AT_LOGIN, Coverage, InjectedFault, MS, SimCluster, SimEvent, SimIo, SimLink, SimMirror,
    SimShards, SimWorker, Simulation, faults,
};
use crate::{
    CheckQuery, ConnectQuery, ConnectionLimit, Core, PoolId, PoolSpec, PoolingMode, ReservePool,
    ResetQuery, StatementRegistry, TargetRole, WorkerId,
    sim::{connect_query::CONNECT_QUERIES, random::SimRandom, script::SimClient},
};

/// The state that the workers of one process share.
pub(super) struct SimProcess {
    /// The connection limit of each pool.
    pub(super) limits: Vec<Arc<ConnectionLimit>>,
    /// The size of each pool's reserve.
    pub(super) reserves: Vec<Arc<ConnectionLimit>>,
    /// The limit of all pools together.
    pub(super) all: Arc<ConnectionLimit>,
    /// The settings of each pool, with these limits.
    specs: Vec<PoolSpec>,
    statements: Arc<StatementRegistry>,
}

impl SimProcess {
    /// Creates a process with its own limits and statements. `all` is the limit of all pools
    /// together, and `reserves` are the sizes of the pools' reserves.
    fn new(specs: &[PoolSpec], all: u32, reserves: &[u32]) -> Self {
        let own = |limit: &Arc<ConnectionLimit>| ConnectionLimit::new(limit.max());
        let limits: Vec<_> = specs.iter().map(|spec| own(&spec.server_limits[0])).collect();
        let mut own_specs: Vec<PoolSpec> = Vec::new();
        for (spec, limit) in specs.iter().zip(&limits) {
            // The members of a cluster share these with their owner pool.
            let known = specs.iter().position(|it| Arc::ptr_eq(&it.welcome, &spec.welcome));
            let known = known.and_then(|at| own_specs.get(at));
            own_specs.push(PoolSpec {
                server_limits: [Arc::clone(limit)].into(),
                welcome: known.map(|it| Arc::clone(&it.welcome)).unwrap_or_default(),
                admin_state: known.map(|it| Arc::clone(&it.admin_state)).unwrap_or_default(),
                ..spec.clone()
            });
        }
        Self {
            specs: own_specs,
            limits,
            reserves: reserves.iter().map(|size| ConnectionLimit::new(*size)).collect(),
            all: ConnectionLimit::new(all),
            statements: Arc::default(),
        }
    }

    /// Creates a process with the same settings as another one.
    pub(super) fn successor(&self, specs: &[PoolSpec]) -> Self {
        let reserves: Vec<_> = self.reserves.iter().map(|limit| limit.max()).collect();
        Self::new(specs, self.all.max(), &reserves)
    }
}

impl Simulation {
    pub(in crate::sim) fn new(seed: u64, fault: Option<InjectedFault>) -> Self {
        let mut random = SimRandom::new(seed);
        let mut specs: Vec<_> =
            (0..1 + random.below(2)).map(|_| random_spec(&mut random)).collect();
        let mut connect = SimRandom::new(seed ^ 0xc0_4ec7 << 40);
        for spec in &mut specs {
            let query = *connect.pick(&CONNECT_QUERIES);
            spec.connect_query = connect.percent(30).then(|| ConnectQuery::new(query).into());
        }
        // Clients connect to these pools. If the last one is a cluster, the pools of its members
        // follow.
        let owner_pools = u32::try_from(specs.len()).unwrap();
        let mut own = SimRandom::new(seed ^ 0x5eed << 40);
        let mut clusters = Vec::new();
        if own.percent(40)
            && let Some(last) = specs.pop()
        {
            let cluster = SimCluster::new(PoolId(owner_pools - 1), &mut own);
            specs.extend(cluster.specs(&last));
            clusters.push(cluster);
        }
        let mut sharding = SimRandom::new(seed ^ 0x5a4d << 40);
        let shards = if clusters.is_empty() && sharding.percent(60) {
            SimShards::new(&mut sharding, &mut specs, &mut clusters)
        } else {
            None
        };
        let mirror = SimMirror::new(seed, &mut specs);
        let mut all = 1 + u32::try_from(random.below(3)).unwrap();
        if let Some(shards) = shards.as_ref().filter(|shards| shards.has_keys) {
            // With fewer servers, requests on all shards would be refused.
            all = all.max(shards.count());
        }
        let mut size = || if random.percent(40) { 1 + random.below(2) } else { 0 };
        let reserves: Vec<_> = specs.iter().map(|_| u32::try_from(size()).unwrap()).collect();
        let process = SimProcess::new(&specs, all, &reserves);
        let backlog_percent = *random.pick(&[0, 5, 30]);
        let worker_count = 1 + u8::try_from(random.below(2)).unwrap();
        let has_faults = random.percent(60);
        let has_schema_changes = random.percent(30);
        let mut takeover = SimRandom::new(seed ^ 0x7a4e << 40);
        let has_takeover = takeover.percent(30);
        let has_forced_users = takeover.percent(30);
        let mut simulation = Self {
            random,
            now: 0,
            serial: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            workers: Vec::new(),
            clients: Vec::new(),
            backends: Vec::new(),
            specs,
            processes: Vec::new(),
            seed,
            backlog_percent,
            executed_once: HashMap::new(),
            current_client: None,
            has_faults,
            fault,
            has_forced_users,
            has_schema_changes,
            is_traced: std::env::var_os("HOWDAH_POOL_SEED").is_some()
                && std::env::var_os("HOWDAH_POOL_SEEDS").is_none(),
            clusters,
            shards,
            mirror,
            copied_rows: HashMap::new(),
            coverage: Coverage::default(),
        };
        simulation.start_process(process, worker_count);
        for number in 0..2 + simulation.random.below(4) {
            let number = u32::try_from(number).unwrap();
            let steps = 3 + u32::try_from(simulation.random.below(12)).unwrap();
            let zone = if simulation.random.percent(30) { "CET" } else { "UTC" };
            let mut settings = AT_LOGIN;
            settings[0].1 = zone;
            let pool = number % owner_pools;
            let link = SimLink { pool: PoolId(pool), ..SimLink::default() };
            let mut client = SimClient::new(number, &settings, steps);
            let is_clustered = simulation.shards.is_none()
                && simulation.clusters.first().is_some_and(|it| it.owner_pool == link.pool);
            if is_clustered {
                let mostly = [TargetRole::Primary, TargetRole::Primary, TargetRole::Primary];
                client.steps_left += u32::try_from(own.below(30)).unwrap();
                client.role = *own.pick(&[&TargetRole::ALL[..], &mostly].concat());
                client.is_mostly_reading = own.percent(60);
            }
            if let Some(shards) = simulation.shards.as_ref().filter(|it| it.owner_pool == link.pool)
            {
                client.steps_left += u32::try_from(sharding.below(20)).unwrap();
                client.role = TargetRole::Primary;
                client.shards = shards.count();
                if shards.has_keys && sharding.percent(70) {
                    client.use_keys();
                    client.has_auto_role = shards.has_auto_role;
                }
                if shards.has_standbys && !client.is_keyed {
                    let roles = [TargetRole::Any, TargetRole::Replica, TargetRole::Primary];
                    client.role = *sharding.pick(&roles);
                    client.is_mostly_reading = sharding.percent(50);
                }
            }
            client.may_stall = has_takeover;
            let spec = &simulation.specs[link.pool.index()];
            client.has_connect_query = spec.connect_query.is_some();
            client.may_reset_in_batch = spec.mode != PoolingMode::Session;
            client.is_adaptive = spec.mode == PoolingMode::Adaptive;
            if has_forced_users {
                client.user = takeover.pick(&[None, Some("alice"), Some("bob")]).map(Arc::from);
            }
            simulation.clients.push((client, link));
            let at = simulation.random.below(20 * MS);
            simulation.schedule(at, SimEvent::Connect(number as usize));
        }
        simulation.schedule(0, SimEvent::Tick);
        if has_takeover {
            simulation.schedule(takeover.below(150 * MS), SimEvent::TakeOver);
        }
        simulation.schedule_hosts();
        simulation
    }

    /// Adds a process with its workers.
    pub(super) fn start_process(&mut self, process: SimProcess, workers: u8) {
        let number = self.processes.len();
        for worker in 0..workers {
            let statements = Arc::clone(&process.statements);
            let mut core = Core::with_statements(WorkerId(worker), statements);
            core.set_worker_count(u32::from(workers));
            let specs = (0..).map(PoolId).zip(&process.specs).zip(&process.reserves);
            for ((pool, spec), reserve) in specs {
                let mut spec = spec.clone();
                if self.is_mirror(pool) {
                    core.set_pool(pool, Arc::new(spec));
                    continue;
                }
                let all = &process.all;
                spec.reserve = (reserve.max() > 0).then(|| ReservePool {
                    limits: [Arc::clone(reserve), Arc::clone(all)].into(),
                    after: Duration::from_millis(30),
                });
                spec.server_limits = [Arc::clone(&spec.server_limits[0]), Arc::clone(all)].into();
                faults::alter_spec(self.fault, &mut spec);
                core.set_pool(pool, Arc::new(spec));
            }
            let salt = u64::from(worker) << 32 ^ (number as u64) << 48;
            let io = SimIo {
                commands: Vec::new(),
                paused: HashSet::new(),
                backlogged: HashSet::new(),
                random: SimRandom::new(self.seed ^ salt),
                backlog_percent: self.backlog_percent,
            };
            let id = WorkerId(worker);
            self.workers.push(SimWorker { process: number, id, core, io, peers: HashMap::new() });
        }
        self.processes.push(process);
    }

    /// Returns the indexes of a process's workers.
    pub(super) fn workers_of(&self, process: usize) -> Vec<usize> {
        let workers = self.workers.iter().enumerate();
        workers.filter(|(_, worker)| worker.process == process).map(|(index, _)| index).collect()
    }

    /// Returns the index of the worker with this id in the same process as the worker `of`.
    pub(super) fn worker_index(&self, of: usize, id: WorkerId) -> usize {
        self.workers_of(self.workers[of].process)[usize::from(id.0)]
    }
}

/// Returns a pool with random settings.
fn random_spec(random: &mut SimRandom) -> PoolSpec {
    let mut spec = PoolSpec::new(1 + u32::try_from(random.below(3)).unwrap());
    spec.mode = match random.below(100) {
        0..15 => PoolingMode::Session,
        15..25 => PoolingMode::Statement,
        25..45 => PoolingMode::Adaptive,
        _ => PoolingMode::Transaction,
    };
    spec.statements_per_server = 1 + u32::try_from(random.below(3)).unwrap();
    spec.logins_max = 2;
    spec.is_round_robin = random.percent(30);
    spec.check = random
        .percent(30)
        .then(|| CheckQuery { query: [].into(), idle: Duration::from_millis(20) });
    let always = random.percent(30);
    let reset = || ResetQuery { query: (*b"DISCARD ALL").into(), is_always: always };
    spec.reset = random.percent(30).then(reset);
    spec.timeouts.query_wait = None;
    spec.timeouts.login_retry_max = Duration::from_millis(500);
    spec.timeouts.server_idle = Some(Duration::from_millis(400));
    spec.timeouts.server_lifetime = Some(Duration::from_secs(2));
    spec
}
