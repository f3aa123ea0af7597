//! Standbys as warm as their primary: what the primary holds and a standby lacks is loaded there, round
//! after round, at a rate that its own work can bear.
//!
//! Roles are asked for anew in each round, so a promotion changes nothing but who is read and who is
//! loaded. A load ends after an interval: then there is a younger image.

use std::{
    borrow::Cow,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Target};
use howdah_stats::Registry;
use howdah_warm::{
    CacheImage,
    dump::{self, Choice, QueryFailure},
    load::{self, Observer, Options},
    metrics::name_of,
};

use crate::{loaded, metrics::Numbers, stop::Stop, store::causes};

/// How standbys follow.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// The servers, in any order: who is the primary is asked for.
    pub servers: Vec<Target>,
    /// Time between rounds.
    pub interval: Duration,
    /// How the primary's image is taken.
    pub choice: Choice,
    /// How a standby is loaded. A standby's cache is full of what it replays, so pages of others have to
    /// be pushed out: see [`Options::evict`].
    pub load: Options,
    /// The part of a standby's cache, 0 to 1, that the primary's hottest pages may take.
    pub share: f64,
}

/// What a server is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Primary,
    /// With so many buffers.
    Standby(u64),
    Away,
}

struct Node {
    target: Target,
    name: String,
    role: Option<Role>,
    numbers: Numbers,
}

/// How long a server may take to let in or to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Follows until told to stop. What goes wrong with a server is logged, and the others go on.
pub fn follow(settings: &FollowSettings, stop: &Stop, registry: &Registry) {
    let mut nodes: Vec<_> =
        settings.servers.iter().map(|target| Node::new(target, registry)).collect();
    let mut had_primary = true;
    while !stop.is_set() {
        let began = Instant::now();
        for node in &mut nodes {
            node.ask_role();
        }
        match primary_of(&nodes) {
            Ok(primary) => {
                had_primary = true;
                round(settings, &nodes, primary, stop);
            }
            Err(why) if had_primary => {
                had_primary = false;
                tracing::warn!("{why}: waiting");
            }
            Err(_) => {}
        }
        // Without a primary there is nothing to wait for but one.
        let due = began + settings.interval;
        let due = if had_primary { due } else { due.min(Instant::now() + PATIENCE) };
        let _ = stop.wait(due.saturating_duration_since(Instant::now()));
    }
}

/// The only primary.
fn primary_of(nodes: &[Node]) -> Result<usize, Cow<'static, str>> {
    let is_primary = |(_, node): &(usize, &Node)| node.role == Some(Role::Primary);
    let primaries: Vec<_> = nodes.iter().enumerate().filter(is_primary).collect();
    match primaries[..] {
        [(at, _)] => Ok(at),
        [] => Err("none of the servers is a primary".into()),
        [(_, first), (_, second), ..] => {
            let (first, second) = (&first.name, &second.name);
            Err(format!("{first} and {second} both are primaries").into())
        }
    }
}

/// One round: the primary is read once, standbys are loaded side by side.
fn round(settings: &FollowSettings, nodes: &[Node], primary: usize, stop: &Stop) {
    let began = Instant::now();
    let source = &nodes[primary];
    let image = match dump::dump(&source.target, settings.choice) {
        Ok(dumped) => dumped.image,
        Err(error) => {
            source.numbers.work.dump_failed();
            tracing::warn!(server = source.name, error = causes(&error), "no image could be taken");
            return;
        }
    };
    let pages = image.page_count();
    source.numbers.work.dumped(began.elapsed(), pages, image.origin.taken_at_us);
    // Loading has all of an interval, however long the image took: else it might never get anywhere.
    let round = Round { stop, until: Instant::now() + settings.interval };
    thread::scope(|scope| {
        for node in nodes {
            let Some(Role::Standby(buffers)) = node.role else { continue };
            let (image, round) = (&image, &round);
            scope.spawn(move || node.catch_up(settings, image, buffers, round));
        }
    });
}

impl Node {
    fn new(target: &Target, registry: &Registry) -> Self {
        let timeout = target.connect_timeout().unwrap_or(PATIENCE);
        let target = target.with_connect_timeout(Some(timeout));
        let name = name_of(&target);
        Self { numbers: Numbers::new(registry, &name), target, name, role: None }
    }

    fn ask_role(&mut self) {
        let (role, why) = match ask(&self.target) {
            Ok(role) => (role, None),
            Err(failure) => (Role::Away, Some(failure)),
        };
        self.numbers.up.set(if role == Role::Away { 0.0 } else { 1.0 });
        let server = &self.name;
        match (role, self.role.replace(role)) {
            (role, Some(before)) if role.is_like(before) => {}
            (Role::Away, _) => {
                let error = why.as_ref().map(|why| causes(why)).unwrap_or_default();
                tracing::warn!(server, error, "server unreachable");
            }
            (Role::Primary, Some(Role::Standby(_))) => {
                tracing::info!(server, "the standby was promoted");
            }
            (Role::Primary, _) => tracing::info!(server, "the server is the primary"),
            (Role::Standby(_), _) => tracing::info!(server, "the server is a standby"),
        }
    }

    fn catch_up(
        &self,
        settings: &FollowSettings,
        image: &CacheImage,
        buffers: u64,
        round: &Round<'_>,
    ) {
        let most = (buffers as f64 * settings.share) as u64;
        let image = match image.page_count() > most {
            true => Cow::Owned(image.hottest(most)),
            false => Cow::Borrowed(image),
        };
        let server = &self.name;
        let shown = self.numbers.work.progress(round);
        match load::load(&image, &self.target, &settings.load, &shown) {
            Ok(loaded) => {
                self.numbers.work.loaded(&loaded);
                loaded::tell(server, &loaded);
            }
            Err(error) => {
                self.numbers.work.load_failed();
                tracing::warn!(server, error = causes(&error), "the standby could not be loaded");
            }
        }
    }
}

impl Role {
    /// Whether there is nothing to tell: another number of buffers is no other role.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

fn ask(target: &Target) -> Result<Role, QueryFailure> {
    let sql = "SELECT pg_is_in_recovery(), setting FROM pg_settings WHERE name = 'shared_buffers'";
    let mut client = Client::connect(&target.with_application_name("howdah warm"))?;
    client.set_timeout(Some(PATIENCE));
    let results = client.query(sql)?;
    let row = results.first().and_then(|result| result.rows.first());
    let text = |column| row.and_then(|row| row.text(column)).unwrap_or_default().into_owned();
    match (&*text(0), text(1).parse()) {
        ("f", _) => Ok(Role::Primary),
        ("t", Ok(buffers)) => Ok(Role::Standby(buffers)),
        (found, _) => Err(QueryFailure::Answer { what: "its role", found: found.to_owned() }),
    }
}

/// Ends loads when it is time for a younger image, or we are told to stop.
struct Round<'a> {
    stop: &'a Stop,
    until: Instant,
}

impl Observer for Round<'_> {
    fn wants_end(&self) -> bool {
        Instant::now() >= self.until || self.stop.is_set()
    }
}
