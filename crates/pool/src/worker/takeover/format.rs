//! What is said between two processes: kinds of frames, and a client's state as bytes.
//!
//! Numbers are big-endian. A text is its length, four bytes, and its bytes; a list is the number of its
//! entries, four bytes, and the entries. A client is
//!
//! ```text
//! id: u64, database: text, user: text, from: text (address of whom a proxy brought; else empty),
//! version: u32, process id: i32, secret: text, age in microseconds: u64,
//! wishes: list of (name: text, value: text), startup: the same,
//! settings that statements were parsed under: list of (list of (u8: 1 if there is one, value: text)),
//! statements: list of (name: text, what follows it in a Parse: text,
//!                      index of the settings: u32 (0xffffffff: none)),
//! unnamed statement: the same without the name (no text: none),
//! role: text (empty: none), said role: text (empty: none),
//! said primary reads: u8 (0: nothing, 1: off, 2: on), said shard: u32 (0xffffffff: none),
//! said read your writes: u8 (as primary reads), shards that it wrote on and minds: list of u32,
//! channels that it listens to: list of texts,
//! last notifications that it was given: list of (channel: text, number since the marker: u64)
//! ```
//!
//! and what opens the servers of a pool is
//!
//! ```text
//! database: text, user: text, salt: text (empty: no keys, and the next three are not there),
//! iterations: u32, client key: 32 bytes, server key: 32 bytes,
//! looked-up secret: text, as pg_authid has it (empty: none)
//! ```

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use howdah_route::{RolePreference, Said};
use howdah_wire::{
    auth::scram::ScramKeys,
    startup::{CancelKey, ProtocolVersion},
};
use zeroize::Zeroizing;

use crate::{
    Channel, ClientHandover, MigrantStatement, Setting, config::StoredSecret,
    worker::hub::Positions,
};

/// Version of all this. Processes of different versions do not take over from one another.
pub(super) const VERSION: u16 = 7;

/// What a new process begins with; behind it comes the version.
pub(super) const MAGIC: &[u8] = b"howdah pool takeover";

/// New to old: magic and version.
pub(super) const HELLO: u8 = 1;
/// Old to new: a listener's descriptor.
pub(super) const LISTENER: u8 = 2;
/// What is said of one that a service manager opened: it is used as it is.
pub(super) const GIVEN: &[u8] = b"given";
/// Old to new: these were all listeners; with what is paused and disabled.
pub(super) const LISTENERS_END: u8 = 3;
/// New to old: it accepts clients, and takes those that there are.
pub(super) const READY: u8 = 4;
/// Old to new: a client, and its descriptor.
pub(super) const CLIENT: u8 = 5;
/// New to old: the client of this id, a u64, is served.
pub(super) const TAKEN: u8 = 6;
/// New to old: a CancelRequest, process id and secret, for one who may still be there.
pub(super) const CANCEL: u8 = 7;
/// Old to new: nobody is left.
pub(super) const DONE: u8 = 8;
/// Old to new: it does not hand over, for this reason.
pub(super) const REFUSED: u8 = 9;
/// Old to new: what opens the servers of a pool, see [`PoolSecrets`]. Comes before the pool's clients.
pub(super) const SECRETS: u8 = 10;

/// What stands for no shard.
const NO_SHARD: u32 = u32::MAX;
/// What stands for no settings.
const NO_SETTINGS: u32 = u32::MAX;

/// Old to new: channels that clients listen to, see [`Channels`].
pub(super) const CHANNELS: u8 = 11;
/// New to old: the channels of a round are listened to; its database and its number.
pub(super) const LISTENING: u8 = 12;

/// Channels that clients of a database listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) database: String,
    /// Whose clients they are: one of them logs in to listen.
    pub(super) users: Vec<String>,
    pub(super) round: u32,
    /// The channel on which the old process marks from where on the new one is to hear.
    pub(super) marker: Channel,
    pub(super) channels: Vec<Channel>,
}

impl Channels {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        text(&mut out, self.database.as_bytes());
        count(&mut out, self.users.len());
        self.users.iter().for_each(|user| text(&mut out, user.as_bytes()));
        out.extend_from_slice(&self.round.to_be_bytes());
        text(&mut out, &self.marker);
        count(&mut out, self.channels.len());
        self.channels.iter().for_each(|channel| text(&mut out, channel));
        out
    }

    /// `None` if the bytes are anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let database = from.string()?;
        let users = from.list(Reader::string)?;
        let round = u32::from_be_bytes(from.array()?);
        let marker = from.text()?.into();
        let channels = from.list(|from| Some(from.text()?.into()))?;
        let found = Self { database, users, round, marker, channels };
        from.0.is_empty().then_some(found)
    }
}

/// A round, and its database.
pub(super) fn encode_round(database: &str, round: u32) -> Vec<u8> {
    let mut out = round.to_be_bytes().to_vec();
    text(&mut out, database.as_bytes());
    out
}

/// `None` if the bytes are anything else.
pub(super) fn decode_round(bytes: &[u8]) -> Option<(String, u32)> {
    let mut from = Reader(bytes);
    let round = u32::from_be_bytes(from.array()?);
    let database = from.string()?;
    from.0.is_empty().then_some((database, round))
}

/// What clients' logins have shown of a user, which opens servers for that user.
#[derive(Clone, Debug)]
pub(super) struct PoolSecrets {
    pub(super) database: String,
    pub(super) user: String,
    /// The keys of a login by SCRAM.
    pub(super) keys: Option<ScramKeys>,
    /// The secret that was looked up at a server.
    pub(super) looked_up: Option<StoredSecret>,
}

impl PoolSecrets {
    /// The bytes are overwritten when they are dropped.
    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let looked_up = self.looked_up.as_ref().map(stored_text);
        let looked_up = looked_up.as_ref().map_or(&[][..], |text| text);
        let salt = self.keys.as_ref().map_or(&[][..], ScramKeys::salt);
        // All at once: a buffer that grows leaves copies behind.
        let bytes = self.database.len() + self.user.len() + salt.len() + looked_up.len() + 128;
        let mut out = Zeroizing::new(Vec::with_capacity(bytes));
        text(&mut out, self.database.as_bytes());
        text(&mut out, self.user.as_bytes());
        text(&mut out, salt);
        if let Some(keys) = &self.keys {
            out.extend_from_slice(&keys.iterations().get().to_be_bytes());
            out.extend_from_slice(keys.client_key());
            out.extend_from_slice(keys.server_key());
        }
        text(&mut out, looked_up);
        out
    }

    /// `None` if the bytes are anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let (database, user) = (from.string()?, from.string()?);
        let salt = from.text()?;
        let keys = match salt {
            [] => None,
            salt => {
                let iterations = NonZeroU32::new(u32::from_be_bytes(from.array()?))?;
                let client_key = Zeroizing::new(from.array()?);
                let server_key = Zeroizing::new(from.array()?);
                Some(ScramKeys::from_parts(salt, iterations, *client_key, *server_key))
            }
        };
        let looked_up = match from.text()? {
            [] => None,
            text => Some(StoredSecret::parse(std::str::from_utf8(text).ok()?)),
        };
        from.0.is_empty().then_some(Self { database, user, keys, looked_up })
    }
}

/// A stored secret as text, the form that [`StoredSecret::parse`] reads.
fn stored_text(secret: &StoredSecret) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(match secret {
        StoredSecret::Plain(text) | StoredSecret::Md5(text) => text.expose().to_vec(),
        StoredSecret::Scram(verifier) => verifier.to_text().into_bytes(),
    })
}

/// A client on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traveller {
    pub(super) id: u64,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) from: Option<SocketAddr>,
    pub(super) migrant: ClientHandover,
    /// The last notifications that it was given, channel by channel, counted from the marker.
    pub(super) positions: Positions,
}

impl Traveller {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { id, database, user, from, migrant, positions } = self;
        let mut out = Vec::new();
        out.extend_from_slice(&id.to_be_bytes());
        text(&mut out, database.as_bytes());
        text(&mut out, user.as_bytes());
        text(&mut out, from.map(|from| from.to_string()).unwrap_or_default().as_bytes());
        out.extend_from_slice(&migrant.version.code().to_be_bytes());
        out.extend_from_slice(&encode_key(&migrant.key));
        let age = u64::try_from(migrant.age.as_micros()).unwrap_or(u64::MAX);
        out.extend_from_slice(&age.to_be_bytes());
        for settings in [&migrant.wishes, &migrant.startup] {
            count(&mut out, settings.len());
            for Setting { name, value } in settings {
                text(&mut out, name);
                text(&mut out, value);
            }
        }
        count(&mut out, migrant.parse_settings.len());
        for values in &migrant.parse_settings {
            count(&mut out, values.len());
            for value in values {
                out.push(value.is_some().into());
                text(&mut out, value.as_deref().unwrap_or_default());
            }
        }
        count(&mut out, migrant.statements.len());
        for (name, of) in &migrant.statements {
            text(&mut out, name);
            statement(&mut out, of);
        }
        statement(&mut out, &migrant.unnamed);
        for role in [migrant.role, migrant.said.role] {
            text(&mut out, role.map_or("", RolePreference::as_str).as_bytes());
        }
        switch(&mut out, migrant.said.primary_reads);
        out.extend_from_slice(&migrant.said.shard.unwrap_or(NO_SHARD).to_be_bytes());
        switch(&mut out, migrant.said.read_your_writes);
        count(&mut out, migrant.wrote.len());
        migrant.wrote.iter().for_each(|shard| out.extend_from_slice(&shard.to_be_bytes()));
        count(&mut out, migrant.channels.len());
        migrant.channels.iter().for_each(|channel| text(&mut out, channel));
        count(&mut out, positions.len());
        for (channel, position) in positions {
            text(&mut out, channel);
            out.extend_from_slice(&position.to_be_bytes());
        }
        out
    }

    /// `None` if the bytes are anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let id = u64::from_be_bytes(from.array()?);
        let (database, user) = (from.string()?, from.string()?);
        let address = from.string()?;
        let address = if address.is_empty() { None } else { Some(address.parse().ok()?) };
        let version = ProtocolVersion::from_code(u32::from_be_bytes(from.array()?));
        let key = from.key()?;
        let age = Duration::from_micros(u64::from_be_bytes(from.array()?));
        let setting = |from: &mut Reader<'_>| Some(Setting::new(from.text()?, from.text()?));
        let (wishes, startup) = (from.list(setting)?, from.list(setting)?);
        let value = |from: &mut Reader<'_>| {
            let [is_there] = from.array()?;
            let value = from.text()?;
            Some((is_there == 1).then(|| value.into()))
        };
        let parse_settings = from.list(|from| from.list(value)?.try_into().ok())?;
        let sets = parse_settings.len();
        let statements = from.list(|from| Some((from.text()?.to_vec(), from.statement(sets)?)))?;
        let unnamed = from.statement(sets)?;
        let (role, said_role) = (from.role()?, from.role()?);
        let primary_reads = from.switch()?;
        let shard = Some(u32::from_be_bytes(from.array()?)).filter(|shard| *shard != NO_SHARD);
        let read_your_writes = from.switch()?;
        let said = Said { role: said_role, primary_reads, read_your_writes, shard };
        let wrote = from.list(|from| Some(u32::from_be_bytes(from.array()?)))?;
        let channels = from.list(|from| Some(from.text()?.into()))?;
        let position =
            |from: &mut Reader<'_>| Some((from.text()?.into(), u64::from_be_bytes(from.array()?)));
        let positions = from.list(position)?;
        let migrant = ClientHandover {
            user: None,
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
        };
        let found = Self { id, database, user, from: address, migrant, positions };
        from.0.is_empty().then_some(found)
    }
}

/// A cancel key: process id and secret.
pub(super) fn encode_key(key: &CancelKey) -> Vec<u8> {
    let mut out = key.process_id().to_be_bytes().to_vec();
    text(&mut out, key.secret());
    out
}

/// What an operator has ordered about a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GateState {
    pub(super) database: String,
    pub(super) is_paused: bool,
    pub(super) is_disabled: bool,
    pub(super) paused_users: Vec<String>,
}

/// What an operator has ordered about databases: a list of name, paused, disabled, and the users who are paused.
pub(super) fn encode_gates(gates: &[GateState]) -> Vec<u8> {
    let mut out = Vec::new();
    count(&mut out, gates.len());
    for GateState { database, is_paused, is_disabled, paused_users } in gates {
        text(&mut out, database.as_bytes());
        out.extend_from_slice(&[u8::from(*is_paused), u8::from(*is_disabled)]);
        count(&mut out, paused_users.len());
        paused_users.iter().for_each(|user| text(&mut out, user.as_bytes()));
    }
    out
}

/// `None` if the bytes are anything else.
pub(super) fn decode_gates(bytes: &[u8]) -> Option<Vec<GateState>> {
    let gate = |from: &mut Reader<'_>| {
        let database = from.string()?;
        let [is_paused, is_disabled] = from.array()?;
        let paused_users = from.list(Reader::string)?;
        let (is_paused, is_disabled) = (is_paused != 0, is_disabled != 0);
        Some(GateState { database, is_paused, is_disabled, paused_users })
    };
    let mut from = Reader(bytes);
    let gates = from.list(gate)?;
    from.0.is_empty().then_some(gates)
}

/// `None` if the bytes are anything else.
pub(super) fn decode_key(bytes: &[u8]) -> Option<CancelKey> {
    let mut from = Reader(bytes);
    from.key().filter(|_| from.0.is_empty())
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn statement(out: &mut Vec<u8>, of: &MigrantStatement) {
    text(out, &of.text);
    let at = of.settings.and_then(|at| u32::try_from(at).ok());
    out.extend_from_slice(&at.unwrap_or(NO_SETTINGS).to_be_bytes());
}

/// What is on, off or not said.
fn switch(out: &mut Vec<u8>, is_on: Option<bool>) {
    out.push(is_on.map_or(0, |is_on| 1 + u8::from(is_on)));
}

/// A length. One that does not fit belongs to a frame that is too long to be sent.
fn count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.array()?)).ok()
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let count = self.count()?;
        let (text, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(text)
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.text()?.to_vec()).ok()
    }

    /// A statement that was parsed under one of so many sets of settings, or none.
    fn statement(&mut self, sets: usize) -> Option<MigrantStatement> {
        let text = self.text()?.to_vec();
        let settings = match u32::from_be_bytes(self.array()?) {
            NO_SETTINGS => None,
            at => Some(usize::try_from(at).ok().filter(|at| *at < sets)?),
        };
        Some(MigrantStatement { text, settings })
    }

    /// What is on, off or not said.
    fn switch(&mut self) -> Option<Option<bool>> {
        match self.array()? {
            [0] => Some(None),
            [1] => Some(Some(false)),
            [2] => Some(Some(true)),
            _ => None,
        }
    }

    /// A role by its word, or none.
    fn role(&mut self) -> Option<Option<RolePreference>> {
        let word = self.string()?;
        if word.is_empty() {
            return Some(None);
        }
        RolePreference::ALL.into_iter().find(|role| role.as_str() == word).map(Some)
    }

    fn key(&mut self) -> Option<CancelKey> {
        let process_id = i32::from_be_bytes(self.array()?);
        CancelKey::new(process_id, self.text()?)
    }

    /// Room is made for entries as they are found, not as they are promised.
    fn list<T>(&mut self, entry: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(entry(self)?);
        }
        Some(list)
    }
}

#[test]
fn a_client_is_the_same_on_both_sides_and_no_part_of_it_is_one() {
    let of = |text: &[u8], settings| MigrantStatement { text: text.to_vec(), settings };
    let migrant = ClientHandover {
        user: None,
        version: ProtocolVersion::V3_2,
        key: CancelKey::new(77, &[7; 32]).unwrap(),
        age: Duration::from_millis(1234),
        wishes: vec![Setting::new("TimeZone", "UTC"), Setting::new("a", "")],
        startup: vec![Setting::new("TimeZone", "UTC")],
        parse_settings: vec![
            Default::default(),
            std::array::from_fn(|at| (at % 2 == 0).then(|| b"UTC"[..].into())),
        ],
        statements: vec![
            (b"s1".to_vec(), of(b"select $1\0\0\x01\0\0\0\x17", None)),
            (b"s2".to_vec(), of(b"select timestamptz 'today'\0\0\0", Some(1))),
        ],
        unnamed: of(b"select 2\0\0\0", Some(0)),
        role: Some(RolePreference::PreferReplica),
        said: Said {
            role: Some(RolePreference::Auto),
            primary_reads: Some(false),
            read_your_writes: Some(true),
            shard: Some(3),
        },
        wrote: vec![0, 3],
        channels: vec![b"news"[..].into(), b"a b"[..].into()],
    };
    let traveller = Traveller {
        id: 9,
        database: "shop".to_owned(),
        user: "ann".to_owned(),
        from: Some(([10, 0, 0, 1], 4711).into()),
        migrant,
        positions: vec![(b"news"[..].into(), 17)],
    };
    let bytes = traveller.encode();
    assert_eq!(Traveller::decode(&bytes), Some(traveller));
    for end in 0..bytes.len() {
        assert_eq!(Traveller::decode(&bytes[..end]), None);
    }
    assert_eq!(Traveller::decode(&[&bytes[..], b"x"].concat()), None);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        let _ = Traveller::decode(&damaged);
    }
}

#[test]
fn channels_are_the_same_on_both_sides_and_no_part_is_accepted() {
    let channels = Channels {
        database: "shop".to_owned(),
        users: vec!["ann".to_owned(), "bob".to_owned()],
        round: 3,
        marker: b"marker"[..].into(),
        channels: vec![b"news"[..].into(), b"a b"[..].into()],
    };
    let bytes = channels.encode();
    assert_eq!(Channels::decode(&bytes), Some(channels));
    (0..bytes.len()).for_each(|end| assert_eq!(Channels::decode(&bytes[..end]), None));
    let bytes = encode_round("shop", 3);
    assert_eq!(decode_round(&bytes), Some(("shop".to_owned(), 3)));
    (0..bytes.len()).for_each(|end| assert_eq!(decode_round(&bytes[..end]), None));
}

#[test]
fn secrets_of_a_pool_survive_the_way_and_no_part_is_accepted() {
    let iterations = NonZeroU32::new(4096).unwrap();
    let keys = ScramKeys::from_parts(b"salt", iterations, [1; 32], [2; 32]);
    let md5 = "md5d41d8cd98f00b204e9800998ecf8427e";
    for looked_up in [None, Some(md5), Some("sesame")] {
        for keys in [None, Some(keys.clone())] {
            let secrets = PoolSecrets {
                database: "shop".to_owned(),
                user: "ann".to_owned(),
                keys: keys.clone(),
                looked_up: looked_up.map(StoredSecret::parse),
            };
            let bytes = secrets.encode();
            let found = PoolSecrets::decode(&bytes).unwrap();
            assert_eq!((found.database.as_str(), found.user.as_str()), ("shop", "ann"));
            assert_eq!(found.looked_up, secrets.looked_up);
            let parts = |keys: &ScramKeys| {
                (keys.salt().to_vec(), keys.iterations(), *keys.client_key(), *keys.server_key())
            };
            assert_eq!(found.keys.as_ref().map(parts), keys.as_ref().map(parts));
            for end in 0..bytes.len() {
                assert!(PoolSecrets::decode(&bytes[..end]).is_none());
            }
            assert!(!format!("{secrets:?}").contains("sesame"));
        }
    }
}

#[test]
fn gates_are_the_same_on_both_sides_and_no_part_is_accepted() {
    let gate = |database: &str, is_paused, users: &[&str]| GateState {
        database: database.to_owned(),
        is_paused,
        is_disabled: !is_paused,
        paused_users: users.iter().map(|user| (*user).to_owned()).collect(),
    };
    let gates = vec![gate("shop", true, &[]), gate("", false, &["ann", "bob"])];
    let bytes = encode_gates(&gates);
    assert_eq!(decode_gates(&bytes), Some(gates));
    (0..bytes.len()).for_each(|end| assert_eq!(decode_gates(&bytes[..end]), None));
}
