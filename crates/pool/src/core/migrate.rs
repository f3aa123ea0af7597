//! Clients that go to another process, with their sockets, and those that come from one.

use std::{sync::Arc, time::Duration};

use howdah_route::{Command, RolePreference, Said};
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::Core;
use crate::{
    Channel, Io,
    client::{Client, ClientState},
    ids::{ClientId, PoolId},
    login::{CancelSecret, ClientLogin},
    parse_settings::{ParseSettings, Values as ParseValues, looked_at},
    routing::{Routing, role_of},
    settings::Setting,
    statements::{is_plain, sql_of},
    time::Time,
};

/// What a client is, apart from its socket and the name of its pool. It has no server, asks for nothing,
/// and has been sent all that it is owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHandover {
    /// Its own user, where that is not its pool's.
    pub user: Option<Arc<str>>,
    /// The protocol version agreed on.
    pub version: ProtocolVersion,
    /// The key that it was given for cancels. It stays good.
    pub key: CancelKey,
    /// How long ago it logged in.
    pub age: Duration,
    /// What it is to find on its server.
    pub wishes: Vec<Setting>,
    /// What of that it asked for at its start.
    pub startup: Vec<Setting>,
    /// The settings under which its statements were parsed, each set once.
    pub parse_settings: Vec<ParseValues>,
    /// Its prepared statements, by name.
    pub statements: Vec<(Vec<u8>, MigrantStatement)>,
    /// Its unnamed statement, with an empty text if it has none.
    pub unnamed: MigrantStatement,
    /// Which of several servers would do by what it said at its start.
    pub role: Option<RolePreference>,
    /// Where its requests go, by what it has said since.
    pub said: Said,
    /// The shards that it wrote on, if it minds whether it reads that.
    pub wrote: Vec<u32>,
    /// The channels that it listens to.
    pub channels: Vec<Channel>,
}

/// A statement of a client that goes to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrantStatement {
    /// What a Parse has behind the name.
    pub text: Vec<u8>,
    /// Index in [`ClientHandover::parse_settings`] of those that it was parsed under, where its meaning depends on them
    /// and they are known.
    pub settings: Option<usize>,
}

/// One whose statements have more bytes than this stays where it is.
const STATEMENT_BYTES_MAX: usize = 16 << 20;

impl Core {
    /// Clients that could go: they have no server, ask for nothing, and have taken all that was sent to
    /// them.
    pub fn migrants(&self) -> Vec<ClientId> {
        let clients = (0..self.clients.slots()).filter_map(|index| self.clients.at(index));
        clients.filter(|(_, client)| may_go(client)).map(|(id, _)| id).collect()
    }

    /// The home of a client that listens, and the channels that it listens to.
    pub fn listens_to(
        &self,
        id: ClientId,
    ) -> Option<(PoolId, impl Iterator<Item = &Channel> + use<'_>)> {
        let client = self.clients.get(id)?;
        let mut channels = client.listens.as_ref()?.committed().peekable();
        channels.peek()?;
        Some((client.home, channels))
    }

    /// Lets a client go without closing its connection; the id is free. `None` if it cannot go now.
    pub fn emigrate(&mut self, id: ClientId, now: Time) -> Option<(PoolId, ClientHandover)> {
        self.now = now;
        self.clients.get(id).filter(|client| may_go(client))?;
        let worker = self.worker;
        let client = self.remove_client(id)?;
        let mut parse_settings: Vec<Arc<ParseSettings>> = Vec::new();
        let mut statement = |text: &[u8], settings: Option<&Arc<ParseSettings>>| MigrantStatement {
            text: text.to_vec(),
            settings: settings.map(|settings| {
                let known = parse_settings.iter().position(|known| known.id == settings.id);
                known.unwrap_or_else(|| {
                    parse_settings.push(Arc::clone(settings));
                    parse_settings.len() - 1
                })
            }),
        };
        let named = client.statements.named.iter();
        let statements = named
            .map(|(name, it)| (name.to_vec(), statement(&it.text, it.settings.as_ref())))
            .collect();
        let unnamed =
            statement(&client.statements.unnamed, client.statements.unnamed_settings.as_ref());
        let migrant = ClientHandover {
            user: client.user.clone(),
            version: client.version,
            key: client.cancel_key(worker, id),
            age: now.since(client.came),
            wishes: client.wishes.list().to_vec(),
            startup: client.startup.list().to_vec(),
            parse_settings: parse_settings.iter().map(|it| it.values.clone()).collect(),
            statements,
            unnamed,
            role: client.own_role,
            said: client.routing.map(|routing| routing.session.said()).unwrap_or_default(),
            wrote: client.floors.iter().flat_map(|floors| floors.shards()).collect(),
            channels: client.listens.iter().flat_map(|it| it.committed()).cloned().collect(),
        };
        Some((client.home, migrant))
    }

    /// Closes servers as soon as nobody waits for one, or keeps them again: those who go have others.
    pub fn keep_no_servers(&mut self, keeps_none: bool, now: Time, io: &mut dyn Io) {
        self.keeps_no_servers = keeps_none;
        self.gates_turned(now, io);
    }

    /// Takes a client in that another process let go. `None` if its pool is not known.
    pub fn immigrate(
        &mut self,
        pool: PoolId,
        migrant: ClientHandover,
        now: Time,
    ) -> Option<ClientId> {
        self.now = now;
        if !self.has_pool(pool) {
            return None;
        }
        let ClientHandover {
            user,
            version,
            key,
            age,
            wishes,
            startup,
            parse_settings,
            statements,
            unnamed,
            role,
            said,
            wrote,
            channels,
        } = migrant;
        // It has a key already, so nothing random is needed for one.
        let secret = CancelSecret([0; 32]);
        let login = ClientLogin { pool, user, version, secret, settings: Vec::new(), role: None };
        let wishes = self.wishes.intern(wishes);
        let mut client = Client::new(&login, wishes);
        client.own_role = role;
        self.house(&mut client, role.map(role_of));
        client.startup = self.wishes.intern(startup);
        client.state = ClientState::Idle;
        client.since = now;
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        client.came = Time(now.0.saturating_sub(age));
        let parse_settings: Vec<_> = parse_settings
            .iter()
            .map(|values| self.statements.parse_settings(&looked_at(values)))
            .collect();
        let settings = |of: &MigrantStatement| of.settings.and_then(|at| parse_settings.get(at));
        for (name, of) in statements {
            let statement = self.statements.intern(&of.text, settings(&of));
            client.statements.named.insert(name.into(), statement);
        }
        let is_plain = is_plain(sql_of(&unnamed.text));
        client.statements.set_unnamed(&unnamed.text, is_plain, settings(&unnamed));
        self.resume(&mut client, said);
        self.remember_writes(&mut client, &wrote);
        if !channels.is_empty() {
            client.listens.get_or_insert_default().restore(channels.into_iter());
        }
        client.foreign_key = Some(Box::new(key.clone()));
        self.draw(&mut client);
        let id = self.clients.insert(client);
        self.foreign_keys.insert(key, id);
        Some(id)
    }

    /// Has a client go on with what it has said, and prepared, where it came from.
    fn resume(&mut self, client: &mut Client, said: Said) {
        let roads = if client.roams { self.routers.of(client.home) } else { None };
        let Some((slot, home)) = roads else { return };
        let mut statements = client.statements.named.values();
        let is_command = |text: &[u8]| Command::read(sql_of(text)).is_some();
        let has_commands = is_command(&client.statements.unnamed)
            || statements.any(|statement| is_command(&statement.text));
        if said == Said::default() && !has_commands {
            return;
        }
        let greeting = home.greeting.known();
        let seed = u64::from(self.worker.0);
        let (role, wishes) = (client.own_role, &client.wishes);
        let mut routing = Routing::new(home.hold, seed, role, wishes, greeting.as_deref());
        routing.session.resume(&slot.router, said);
        routing.has_commands = has_commands;
        client.routing = Some(Box::new(routing));
    }

    /// What it wrote where it came from is there by now: as good as if it had written it just now.
    fn remember_writes(&self, client: &mut Client, shards: &[u32]) {
        let pool = self.pools[client.home.index()].as_ref();
        let clusters = pool.map_or(&[][..], |pool| &pool.spec.clusters);
        for shard in shards.iter().copied() {
            let cluster = usize::try_from(shard).ok().and_then(|at| clusters.get(at));
            let Some(cluster) = cluster else { continue };
            let floor = cluster.state.tide.rise_some_time();
            client.minds_writes = true;
            client.floors.get_or_insert_default().rise(shard, floor);
        }
    }

    /// Takes a client out of the tables.
    pub(super) fn remove_client(&mut self, id: ClientId) -> Option<Client> {
        let mut client = self.clients.remove(id)?;
        self.tap_left(&client);
        self.end_mirroring(&mut client);
        if let Some(key) = &client.foreign_key {
            self.foreign_keys.remove(&**key);
        }
        Some(client)
    }
}

fn may_go(client: &Client) -> bool {
    let named = &client.statements.named;
    client.state == ClientState::Idle
        && client.is_somebody()
        && !client.asks()
        && !client.backlogged
        && !client.cut_off
        && client.routing.as_ref().is_none_or(|routing| routing.is_at_rest())
        && !client.listens.as_ref().is_some_and(|it| it.has_news())
        && named.iter().map(|(name, it)| name.len() + it.text.len()).sum::<usize>()
            + client.statements.unnamed.len()
            <= STATEMENT_BYTES_MAX
}
