//! The takeover protocol: kinds of frames, and the encoding of their bodies.
//!
//! Numbers are big-endian. A text is its length in four bytes and its bytes; a list is the number
//! of its entries in four bytes and the entries. A client is
//!
//! ```text
//! id: u64, database: text, user: text, from: text (address from a PROXY header; else empty),
//! version: u32, process ID: i32, secret: text, age in microseconds: u64,
//! session parameters: list of (name: text, value: text), startup parameters: the same,
//! parameter sets that statements were parsed under:
//!     list of (list of (u8: 1 if the value is present, value: text)),
//! statements: list of (name: text, the rest of its Parse message: text,
//!                      index of the parameter set: u32 (0xffffffff: none)),
//! unnamed statement: the same without the name (empty text: none),
//! role: text (empty: none), role set by the client: text (empty: none),
//! primary reads set by the client: u8 (0: not set, 1: off, 2: on),
//! shard set by the client: u32 (0xffffffff: none),
//! read-your-writes set by the client: u8 (as primary reads),
//! shards with writes to wait for: list of u32,
//! channels listened to: list of texts,
//! positions of the last notifications: list of (channel: text, number since the marker: u64)
//! ```
//!
//! and the credentials of a pool are
//!
//! ```text
//! database: text, user: text, salt: text (empty: no keys, the next three are absent),
//! iterations: u32, client key: 32 bytes, server key: 32 bytes,
//! secret from an auth query, or the password that a server has accepted: text, as in pg_authid
//!     (empty: none),
//! whether it is such a password: u8
//! ```

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use howdah_pool_config::StoredSecret;
use howdah_pool_core::{Channel, ClientHandover, HandoverStatement, SessionParameter};
use howdah_route::{RolePreference, SessionOverrides};
use howdah_wire::{
    auth::scram::ScramKeys,
    startup::{CancelKey, ProtocolVersion},
};
use zeroize::Zeroizing;

use crate::worker::multiplexer::Positions;

/// The version of the protocol. Processes with different versions do not take over from each other.
pub(super) const VERSION: u16 = 8;

/// The start of HELLO; the version follows it.
pub(super) const MAGIC: &[u8] = b"howdah pool takeover";

/// New to old: magic and version.
pub(super) const HELLO: u8 = 1;
/// Old to new: a listener's descriptor.
pub(super) const LISTENER: u8 = 2;
/// Body of LISTENER for a socket that a service manager opened, which is used unchanged.
pub(super) const PASSED: &[u8] = b"given";
/// Old to new: the end of the listeners, with the admin states of databases.
pub(super) const LISTENERS_END: u8 = 3;
/// New to old: the new process accepts clients and is ready for those of the old process.
pub(super) const READY: u8 = 4;
/// Old to new: a client with its descriptor.
pub(super) const CLIENT: u8 = 5;
/// New to old: the client with this ID, a u64, was received, and the old process can drop it.
pub(super) const TAKEN: u8 = 6;
/// New to old: a CancelRequest, process ID and secret, for a client that the old process may still
/// have.
pub(super) const CANCEL: u8 = 7;
/// Old to new: no clients are left.
pub(super) const DONE: u8 = 8;
/// Old to new: the takeover is refused for this reason.
pub(super) const REFUSED: u8 = 9;
/// Old to new: the credentials of a pool, see [`PoolSecrets`]. Sent before the pool's clients.
pub(super) const SECRETS: u8 = 10;

/// The value that encodes no shard.
const NO_SHARD: u32 = u32::MAX;
/// The value that encodes no parameter set.
const NO_SETTINGS: u32 = u32::MAX;

/// Old to new: channels that clients listen to, see [`ListenedChannels`].
pub(super) const CHANNELS: u8 = 11;
/// New to old: the new process listens to the channels of a round, given by database and number.
pub(super) const LISTENING: u8 = 12;

/// The body of CHANNELS: a round of channels that the clients of a database listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenedChannels {
    pub(super) database: String,
    /// Names of the users of the database's listening clients. One of their logins is used to
    /// listen.
    pub(super) users: Vec<String>,
    pub(super) round: u32,
    /// The channel on which the old process sends the marker.
    pub(super) marker: Channel,
    pub(super) channels: Vec<Channel>,
}

impl ListenedChannels {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_text(&mut out, self.database.as_bytes());
        push_count(&mut out, self.users.len());
        self.users.iter().for_each(|user| push_text(&mut out, user.as_bytes()));
        out.extend_from_slice(&self.round.to_be_bytes());
        push_text(&mut out, &self.marker);
        push_count(&mut out, self.channels.len());
        self.channels.iter().for_each(|channel| push_text(&mut out, channel));
        out
    }

    /// Decodes a body; `None` if the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = TakeoverDecoder(bytes);
        let database = from.string()?;
        let users = from.list(TakeoverDecoder::string)?;
        let round = u32::from_be_bytes(from.array()?);
        let marker = from.text()?.into();
        let channels = from.list(|from| Some(from.text()?.into()))?;
        let found = Self { database, users, round, marker, channels };
        from.0.is_empty().then_some(found)
    }
}

/// Encodes the body of LISTENING: the number of a round, a u32, and the database, a text.
pub(super) fn encode_round(database: &str, round: u32) -> Vec<u8> {
    let mut out = round.to_be_bytes().to_vec();
    push_text(&mut out, database.as_bytes());
    out
}

/// Decodes the body of LISTENING into database and round; `None` if the bytes are malformed.
pub(super) fn decode_round(bytes: &[u8]) -> Option<(String, u32)> {
    let mut from = TakeoverDecoder(bytes);
    let round = u32::from_be_bytes(from.array()?);
    let database = from.string()?;
    from.0.is_empty().then_some((database, round))
}

/// Credentials cached from the logins of a user's clients, for logins to servers as that user.
#[derive(Clone, Debug)]
pub(super) struct PoolSecrets {
    pub(super) database: String,
    pub(super) user: String,
    /// The keys from a SCRAM login.
    pub(super) keys: Option<ScramKeys>,
    /// The secret from an auth query, or the password that a server has accepted.
    pub(super) looked_up: Option<StoredSecret>,
    /// Whether it is such a password.
    pub(super) is_passed_through: bool,
}

impl PoolSecrets {
    /// Encodes the body of SECRETS. The bytes are zeroed when they are dropped.
    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let looked_up = self.looked_up.as_ref().map(secret_text);
        let looked_up = looked_up.as_ref().map_or(&[][..], |text| text);
        let salt = self.keys.as_ref().map_or(&[][..], ScramKeys::salt);
        // Allocated once: a growing buffer would leave copies of the secret in memory.
        let bytes = self.database.len() + self.user.len() + salt.len() + looked_up.len() + 128;
        let mut out = Zeroizing::new(Vec::with_capacity(bytes));
        push_text(&mut out, self.database.as_bytes());
        push_text(&mut out, self.user.as_bytes());
        push_text(&mut out, salt);
        if let Some(keys) = &self.keys {
            out.extend_from_slice(&keys.iterations().get().to_be_bytes());
            out.extend_from_slice(keys.client_key());
            out.extend_from_slice(keys.server_key());
        }
        push_text(&mut out, looked_up);
        out.push(self.is_passed_through.into());
        out
    }

    /// Decodes a body; `None` if the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = TakeoverDecoder(bytes);
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
        let text = from.text()?;
        let is_passed_through = from.array()? == [1];
        let looked_up = match text {
            [] => None,
            // A user's password may look like a stored secret, and need not be UTF-8.
            text if is_passed_through => Some(StoredSecret::Plain(text.into())),
            text => Some(StoredSecret::parse(std::str::from_utf8(text).ok()?)),
        };
        from.0.is_empty().then_some(Self { database, user, keys, looked_up, is_passed_through })
    }
}

/// Returns a stored secret as text, in the form that [`StoredSecret::parse`] reads.
fn secret_text(secret: &StoredSecret) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(match secret {
        StoredSecret::Plain(text) | StoredSecret::Md5(text) => text.expose().to_vec(),
        StoredSecret::Scram(verifier) => verifier.to_text().into_bytes(),
    })
}

/// A client's state, as sent to the new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientSnapshot {
    pub(super) id: u64,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) from: Option<SocketAddr>,
    pub(super) handover: ClientHandover,
    /// The positions of the last notifications that the client received.
    pub(super) positions: Positions,
}

impl ClientSnapshot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { id, database, user, from, handover, positions } = self;
        let mut out = Vec::new();
        out.extend_from_slice(&id.to_be_bytes());
        push_text(&mut out, database.as_bytes());
        push_text(&mut out, user.as_bytes());
        push_text(&mut out, from.map(|from| from.to_string()).unwrap_or_default().as_bytes());
        out.extend_from_slice(&handover.version.code().to_be_bytes());
        out.extend_from_slice(&encode_key(&handover.key));
        let age = u64::try_from(handover.age.as_micros()).unwrap_or(u64::MAX);
        out.extend_from_slice(&age.to_be_bytes());
        for settings in [&handover.parameters, &handover.startup_parameters] {
            push_count(&mut out, settings.len());
            for SessionParameter { name, value } in settings {
                push_text(&mut out, name);
                push_text(&mut out, value);
            }
        }
        push_count(&mut out, handover.parse_settings.len());
        for values in &handover.parse_settings {
            push_count(&mut out, values.len());
            for value in values {
                out.push(value.is_some().into());
                push_text(&mut out, value.as_deref().unwrap_or_default());
            }
        }
        push_count(&mut out, handover.statements.len());
        for (name, of) in &handover.statements {
            push_text(&mut out, name);
            push_statement(&mut out, of);
        }
        push_statement(&mut out, &handover.unnamed);
        for role in [handover.role, handover.session_overrides.role] {
            push_text(&mut out, role.map_or("", RolePreference::as_str).as_bytes());
        }
        push_switch(&mut out, handover.session_overrides.primary_reads);
        out.extend_from_slice(&handover.session_overrides.shard.unwrap_or(NO_SHARD).to_be_bytes());
        push_switch(&mut out, handover.session_overrides.read_your_writes);
        push_count(&mut out, handover.written_shards.len());
        handover
            .written_shards
            .iter()
            .for_each(|shard| out.extend_from_slice(&shard.to_be_bytes()));
        push_count(&mut out, handover.channels.len());
        handover.channels.iter().for_each(|channel| push_text(&mut out, channel));
        push_count(&mut out, positions.len());
        for (channel, position) in positions {
            push_text(&mut out, channel);
            out.extend_from_slice(&position.to_be_bytes());
        }
        out
    }

    /// Decodes a body; `None` if the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = TakeoverDecoder(bytes);
        let id = u64::from_be_bytes(from.array()?);
        let (database, user) = (from.string()?, from.string()?);
        let address = from.string()?;
        let address = if address.is_empty() { None } else { Some(address.parse().ok()?) };
        let version = ProtocolVersion::from_code(u32::from_be_bytes(from.array()?));
        let key = from.key()?;
        let age = Duration::from_micros(u64::from_be_bytes(from.array()?));
        let setting = |from: &mut TakeoverDecoder<'_>| {
            Some(SessionParameter::new(from.text()?, from.text()?))
        };
        let (parameters, startup) = (from.list(setting)?, from.list(setting)?);
        let value = |from: &mut TakeoverDecoder<'_>| {
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
        let said = SessionOverrides { role: said_role, primary_reads, read_your_writes, shard };
        let wrote = from.list(|from| Some(u32::from_be_bytes(from.array()?)))?;
        let channels = from.list(|from| Some(from.text()?.into()))?;
        let position = |from: &mut TakeoverDecoder<'_>| {
            Some((from.text()?.into(), u64::from_be_bytes(from.array()?)))
        };
        let positions = from.list(position)?;
        let handover = ClientHandover {
            user: None,
            version,
            key,
            age,
            parameters,
            startup_parameters: startup,
            parse_settings,
            statements,
            unnamed,
            role,
            session_overrides: said,
            written_shards: wrote,
            channels,
        };
        let found = Self { id, database, user, from: address, handover, positions };
        from.0.is_empty().then_some(found)
    }
}

/// Encodes a cancel key as process ID and secret.
pub(super) fn encode_key(key: &CancelKey) -> Vec<u8> {
    let mut out = key.process_id().to_be_bytes().to_vec();
    push_text(&mut out, key.secret());
    out
}

/// The admin state of a database: whether it, or users of it, are paused or disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminStateRecord {
    pub(super) database: String,
    pub(super) is_paused: bool,
    pub(super) is_disabled: bool,
    pub(super) paused_users: Vec<String>,
}

/// Encodes a list of admin states, each as name, paused, disabled, and list of paused users.
pub(super) fn encode_admin_states(states: &[AdminStateRecord]) -> Vec<u8> {
    let mut out = Vec::new();
    push_count(&mut out, states.len());
    for AdminStateRecord { database, is_paused, is_disabled, paused_users } in states {
        push_text(&mut out, database.as_bytes());
        out.extend_from_slice(&[u8::from(*is_paused), u8::from(*is_disabled)]);
        push_count(&mut out, paused_users.len());
        paused_users.iter().for_each(|user| push_text(&mut out, user.as_bytes()));
    }
    out
}

/// Decodes a list of admin states; `None` if the bytes are malformed.
pub(super) fn decode_admin_states(bytes: &[u8]) -> Option<Vec<AdminStateRecord>> {
    let state = |from: &mut TakeoverDecoder<'_>| {
        let database = from.string()?;
        let [is_paused, is_disabled] = from.array()?;
        let paused_users = from.list(TakeoverDecoder::string)?;
        let (is_paused, is_disabled) = (is_paused != 0, is_disabled != 0);
        Some(AdminStateRecord { database, is_paused, is_disabled, paused_users })
    };
    let mut from = TakeoverDecoder(bytes);
    let states = from.list(state)?;
    from.0.is_empty().then_some(states)
}

/// Decodes a cancel key; `None` if the bytes are malformed.
pub(super) fn decode_key(bytes: &[u8]) -> Option<CancelKey> {
    let mut from = TakeoverDecoder(bytes);
    from.key().filter(|_| from.0.is_empty())
}

fn push_text(out: &mut Vec<u8>, bytes: &[u8]) {
    push_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn push_statement(out: &mut Vec<u8>, statement: &HandoverStatement) {
    push_text(out, &statement.text);
    let at = statement.settings.and_then(|at| u32::try_from(at).ok());
    out.extend_from_slice(&at.unwrap_or(NO_SETTINGS).to_be_bytes());
}

/// Appends an optional boolean.
fn push_switch(out: &mut Vec<u8>, is_on: Option<bool>) {
    out.push(is_on.map_or(0, |is_on| 1 + u8::from(is_on)));
}

/// Appends a count. If the count does not fit into 32 bits, the frame is too long to be sent in any
/// case.
fn push_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

struct TakeoverDecoder<'a>(&'a [u8]);

impl<'a> TakeoverDecoder<'a> {
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

    /// Decodes a statement, parsed under one of `sets` parameter sets or none.
    fn statement(&mut self, sets: usize) -> Option<HandoverStatement> {
        let text = self.text()?.to_vec();
        let settings = match u32::from_be_bytes(self.array()?) {
            NO_SETTINGS => None,
            at => Some(usize::try_from(at).ok().filter(|at| *at < sets)?),
        };
        Some(HandoverStatement { text, settings })
    }

    /// Decodes an optional boolean; the outer `None` means malformed bytes.
    fn switch(&mut self) -> Option<Option<bool>> {
        match self.array()? {
            [0] => Some(None),
            [1] => Some(Some(false)),
            [2] => Some(Some(true)),
            _ => None,
        }
    }

    /// Decodes an optional role by its name; the outer `None` means malformed bytes.
    fn role(&mut self) -> Option<Option<RolePreference>> {
        let name = self.string()?;
        if name.is_empty() {
            return Some(None);
        }
        RolePreference::ALL.into_iter().find(|role| role.as_str() == name).map(Some)
    }

    fn key(&mut self) -> Option<CancelKey> {
        let process_id = i32::from_be_bytes(self.array()?);
        CancelKey::new(process_id, self.text()?)
    }

    /// Decodes a list. Allocates as entries are decoded, not by the declared count.
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
fn client_snapshot_round_trips_and_rejects_truncation() {
    let of = |text: &[u8], settings| HandoverStatement { text: text.to_vec(), settings };
    let handover = ClientHandover {
        user: None,
        version: ProtocolVersion::V3_2,
        key: CancelKey::new(77, &[7; 32]).unwrap(),
        age: Duration::from_millis(1234),
        parameters: vec![SessionParameter::new("TimeZone", "UTC"), SessionParameter::new("a", "")],
        startup_parameters: vec![SessionParameter::new("TimeZone", "UTC")],
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
        session_overrides: SessionOverrides {
            role: Some(RolePreference::Auto),
            primary_reads: Some(false),
            read_your_writes: Some(true),
            shard: Some(3),
        },
        written_shards: vec![0, 3],
        channels: vec![b"news"[..].into(), b"a b"[..].into()],
    };
    let snapshot = ClientSnapshot {
        id: 9,
        database: "shop".to_owned(),
        user: "ann".to_owned(),
        from: Some(([10, 0, 0, 1], 4711).into()),
        handover,
        positions: vec![(b"news"[..].into(), 17)],
    };
    let bytes = snapshot.encode();
    assert_eq!(ClientSnapshot::decode(&bytes), Some(snapshot));
    for end in 0..bytes.len() {
        assert_eq!(ClientSnapshot::decode(&bytes[..end]), None);
    }
    assert_eq!(ClientSnapshot::decode(&[&bytes[..], b"x"].concat()), None);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        let _ = ClientSnapshot::decode(&damaged);
    }
}

#[test]
fn channels_round_trip_and_reject_truncation() {
    let channels = ListenedChannels {
        database: "shop".to_owned(),
        users: vec!["ann".to_owned(), "bob".to_owned()],
        round: 3,
        marker: b"marker"[..].into(),
        channels: vec![b"news"[..].into(), b"a b"[..].into()],
    };
    let bytes = channels.encode();
    assert_eq!(ListenedChannels::decode(&bytes), Some(channels));
    (0..bytes.len()).for_each(|end| assert_eq!(ListenedChannels::decode(&bytes[..end]), None));
    let bytes = encode_round("shop", 3);
    assert_eq!(decode_round(&bytes), Some(("shop".to_owned(), 3)));
    (0..bytes.len()).for_each(|end| assert_eq!(decode_round(&bytes[..end]), None));
}

#[test]
fn pool_secrets_round_trip_and_reject_truncation() {
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
                is_passed_through: false,
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
    // A password that looks like an md5 hash stays a password.
    let password = StoredSecret::Plain(md5.into());
    let secrets = PoolSecrets {
        database: String::new(),
        user: String::new(),
        keys: None,
        looked_up: Some(password.clone()),
        is_passed_through: true,
    };
    assert_eq!(PoolSecrets::decode(&secrets.encode()).unwrap().looked_up, Some(password));
}

#[test]
fn admin_states_round_trip_and_reject_truncation() {
    let state = |database: &str, is_paused, users: &[&str]| AdminStateRecord {
        database: database.to_owned(),
        is_paused,
        is_disabled: !is_paused,
        paused_users: users.iter().map(|user| (*user).to_owned()).collect(),
    };
    let states = vec![state("shop", true, &[]), state("", false, &["ann", "bob"])];
    let bytes = encode_admin_states(&states);
    assert_eq!(decode_admin_states(&bytes), Some(states));
    (0..bytes.len()).for_each(|end| assert_eq!(decode_admin_states(&bytes[..end]), None));
}
