//! The targets: functions over bytes that panic when a promise is broken.

pub mod connect;
pub mod dataset;
pub mod grammar;
pub mod log_input;
pub mod log_text;
pub mod logs;
pub mod pool_access;
pub mod pool_core;
pub mod pool_login;
pub mod pool_settings;
pub mod probe_recording;
pub mod probe_waits;
pub mod record;
pub mod redact;
pub mod route;
pub mod scram;
pub mod server_record;
pub mod session;
pub mod sieve;
pub mod sql;
pub mod statsd;
pub mod statsd_mapping;
pub mod statsd_reply;
pub mod statsd_settings;
pub mod top_recording;
pub mod warm_image;
pub mod wire;
pub mod words;

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

/// A function that is fed inputs, and what it is fed with.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it feeds, and what it asserts.
    pub about: &'static str,
    /// Panics when a promise is broken.
    pub run: fn(&[u8]) -> Shape,
    /// Inputs to begin with.
    pub seeds: Seeds,
    /// Words that the parser knows.
    pub words: &'static [&'static [u8]],
    /// Longest input, in bytes.
    pub bytes_max: usize,
    /// Bytes of memory that it may hold, whatever the input, and per byte of the input.
    pub memory: (usize, usize),
    /// Inputs in a short run: about a second's worth.
    pub smoke: u64,
}

impl Target {
    /// What most targets have.
    pub const PLAIN: Self = Self {
        name: "",
        about: "",
        run: |_| Shape(Vec::new()),
        seeds: Seeds::Made(Vec::new),
        words: &[],
        bytes_max: 4096,
        memory: (64 << 10, 64),
        smoke: 5000,
    };

    /// Most memory that it may hold for an input of `bytes`.
    pub fn memory_max(&self, bytes: usize) -> usize {
        let (fixed, per_byte) = self.memory;
        fixed + per_byte * bytes
    }
}

/// What a target did with an input: hashes of the messages, errors and counts there were. An input
/// with one that is new is worth to be mutated further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(Vec<u64>);

impl Shape {
    /// One thing that happened. It should not say with which values.
    pub fn of(what: impl Hash) -> Self {
        Self::each([what])
    }

    /// Several things that happened, each of which may be new by itself.
    pub fn each<T: Hash>(what: impl IntoIterator<Item = T>) -> Self {
        let hash = |item: T| {
            let mut hasher = DefaultHasher::new();
            item.hash(&mut hasher);
            hasher.finish()
        };
        Self(what.into_iter().map(hash).collect())
    }

    /// The same, and one thing more.
    #[must_use]
    pub fn and(mut self, what: impl Hash) -> Self {
        self.0.extend(Self::of(what).0);
        self
    }

    /// The hashes.
    pub fn hashes(&self) -> &[u64] {
        &self.0
    }
}

/// Inputs to begin with.
#[derive(Clone, Copy, Debug)]
pub enum Seeds {
    /// The files of a folder in `fuzz/seeds`, in the order of their names.
    Folder(&'static str),
    /// Made by code, because they are binary or of a format that changes.
    Made(fn() -> Vec<Vec<u8>>),
}

impl Seeds {
    /// The inputs themselves.
    pub fn inputs(self) -> Vec<Vec<u8>> {
        match self {
            Self::Folder(name) => {
                files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name))
            }
            Self::Made(make) => make(),
        }
    }
}

/// The contents of the files of a folder. No folder is no files: the campaign complains.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Every target.
pub static TARGETS: &[Target] = &[
    Target {
        name: "logs-stderr",
        about: "a stderr log: pieces give what the whole gives, counts close",
        run: logs::stderr,
        seeds: Seeds::Folder("stderr"),
        words: logs::WORDS,
        memory: logs::MEMORY,
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "logs-csv",
        about: "a csvlog, likewise",
        run: logs::csv,
        seeds: Seeds::Folder("csv"),
        words: logs::WORDS,
        memory: logs::MEMORY,
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "logs-json",
        about: "a jsonlog, likewise",
        run: logs::json,
        seeds: Seeds::Folder("json"),
        words: logs::WORDS,
        memory: logs::MEMORY,
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "logs-any",
        about: "a log of unknown format: what is guessed reads the log, likewise",
        run: logs::any,
        seeds: Seeds::Made(logs::all_seeds),
        words: logs::WORDS,
        memory: logs::MEMORY,
        smoke: 40,
        ..Target::PLAIN
    },
    Target {
        name: "logs-frames",
        about: "a log cut anywhere: records framed in pieces are those that are read one by one",
        run: logs::frames,
        seeds: Seeds::Made(logs::frames_seeds),
        words: logs::WORDS,
        bytes_max: 8192,
        memory: logs::MEMORY,
        smoke: 60,
    },
    Target {
        name: "logs-prefix",
        about: "a log_line_prefix: what compiles reads the line that it prints",
        run: logs::prefix,
        seeds: Seeds::Folder("prefix"),
        words: logs::PREFIX_WORDS,
        bytes_max: 64,
        memory: logs::MEMORY,
        smoke: 1500,
    },
    Target {
        name: "logs-unwrap",
        about: "what is around a log: pieces give what the whole gives, problems close",
        run: log_input::unwrap,
        seeds: Seeds::Made(log_input::unwrap_seeds),
        words: log_input::WORDS,
        memory: log_input::MEMORY,
        smoke: 5000,
        ..Target::PLAIN
    },
    Target {
        name: "logs-syslog",
        about: "a message cut for syslog comes out whole",
        run: log_input::syslog,
        seeds: Seeds::Folder("text"),
        words: log_input::SYSLOG_WORDS,
        memory: log_input::MEMORY,
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "logs-text",
        about: "SQL and parameters as the server writes them: three formats, one event",
        run: log_text::run,
        seeds: Seeds::Folder("text"),
        words: log_text::WORDS,
        memory: logs::MEMORY,
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "wire-backend",
        about: "messages of a server: what is read is written again as it was",
        run: wire::backend,
        seeds: Seeds::Made(wire::backend_seeds),
        words: wire::BACKEND_WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "wire-frontend",
        about: "messages of a client, likewise",
        run: wire::frontend,
        seeds: Seeds::Made(wire::frontend_seeds),
        words: wire::FRONTEND_WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "wire-startup",
        about: "startup packets, likewise",
        run: wire::startup,
        seeds: Seeds::Made(wire::startup_seeds),
        words: wire::STARTUP_WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "scram",
        about: "messages of SCRAM: only who knows the password is believed",
        run: scram::run,
        seeds: Seeds::Folder("scram"),
        words: scram::WORDS,
        bytes_max: 512,
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "session",
        about: "a client fed by a server: pieces give what the whole gives, replies belong to requests",
        run: session::run,
        seeds: Seeds::Made(session::seeds),
        words: wire::BACKEND_WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "sql",
        about: "SQL: tokens cover the text, the normal form is stable and blind to case and space",
        run: sql::run,
        seeds: Seeds::Folder("sql"),
        words: sql::WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "sql-long",
        about: "SQL repeated to a quarter of a megabyte: time and memory stay linear",
        run: sql::long,
        seeds: Seeds::Folder("sql"),
        words: sql::WORDS,
        bytes_max: 256,
        memory: (16 << 20, 0),
        smoke: 50,
    },
    Target {
        name: "sql-grammar",
        about: "what a statement may do: no comment, case or company hides that it writes",
        run: grammar::run,
        seeds: Seeds::Folder("grammar"),
        words: grammar::WORDS,
        bytes_max: 1024,
        memory: grammar::MEMORY,
        smoke: 400,
    },
    Target {
        name: "route",
        about: "where a request goes: company, comments and memory change nothing, no key is invented",
        run: route::run,
        seeds: Seeds::Folder("route"),
        words: route::WORDS,
        bytes_max: 1024,
        memory: route::MEMORY,
        smoke: 1500,
    },
    Target {
        name: "redact",
        about: "SQL and values: no constant of PostgreSQL's scanner is left, and what it took it takes",
        run: redact::run,
        seeds: Seeds::Folder("redact"),
        words: redact::WORDS,
        memory: redact::MEMORY,
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "sieve",
        about: "filters of events: counts close, and what was kept is kept again",
        run: sieve::run,
        seeds: Seeds::Made(sieve::seeds),
        words: sieve::WORDS,
        memory: logs::MEMORY,
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "statsd",
        about: "a statsd packet: lines give what the whole gives, numbers are finite, counts close",
        run: statsd::run,
        seeds: Seeds::Folder("statsd"),
        words: statsd::WORDS,
        memory: (1 << 20, 4096),
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "statsd-settings",
        about: "settings of statsd servers: settings, or complaints about lines that are there",
        run: statsd_settings::run,
        seeds: Seeds::Folder("statsd_settings"),
        words: statsd_settings::WORDS,
        memory: (1 << 20, 4096),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "statsd-mapping",
        about: "mapping files for Prometheus: a line that is there is wrong, or names become names",
        run: statsd_mapping::run,
        seeds: Seeds::Folder("statsd_mapping"),
        words: statsd_mapping::WORDS,
        // Compiling a regular expression takes its library's bound of memory, not the file's.
        memory: (16 << 20, 8192),
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "statsd-reply",
        about: "replies to a POST: the body that stands there, or a reason in one line",
        run: statsd_reply::run,
        seeds: Seeds::Folder("statsd_reply"),
        words: statsd_reply::WORDS,
        // The buffers of a connection, which do not depend on the reply.
        memory: (1 << 20, 64),
        ..Target::PLAIN
    },
    Target {
        name: "pool-settings",
        about: "settings of the pooler in both forms: settings, or complaints about lines that are there",
        run: pool_settings::settings,
        seeds: Seeds::Folder("pool_settings"),
        words: pool_settings::WORDS,
        memory: (1 << 20, 4096),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-rules",
        about: "hba and ident files: rules that judge in one way, or complaints about lines that are there",
        run: pool_access::rules,
        seeds: Seeds::Made(pool_access::rules_seeds),
        words: pool_access::RULE_WORDS,
        memory: (8 << 20, 4096),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-proxy",
        about: "headers of the PROXY protocol: what is behind changes nothing, and less is not enough",
        run: pool_access::header,
        seeds: Seeds::Made(pool_access::header_seeds),
        words: &[],
        ..Target::PLAIN
    },
    Target {
        name: "pool-console",
        about: "commands at the pooler's console: blanks and semicolons around them change nothing",
        run: pool_access::console,
        seeds: Seeds::Made(pool_access::console_seeds),
        words: pool_access::CONSOLE_WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "pool-userlist",
        about: "user lists: what is read is read again, and no secret is shown",
        run: pool_settings::userlist,
        seeds: Seeds::Folder("pool_userlist"),
        words: pool_settings::WORDS,
        memory: (256 << 10, 256),
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-client",
        about: "what a client sends through the pooler: the same however it is cut",
        run: pool_core::client,
        seeds: Seeds::Made(pool_core::seeds),
        words: pool_core::WORDS,
        memory: (512 << 10, 256),
        smoke: 3000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-server",
        about: "what a server sends through the pooler: nobody is told more, nothing after a close",
        run: pool_core::server,
        seeds: Seeds::Made(pool_core::seeds),
        words: pool_core::WORDS,
        memory: (512 << 10, 256),
        smoke: 3000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-dialogue",
        about: "client and server both say anything through the pooler: no answer too many, no server",
        run: pool_core::dialogue,
        seeds: Seeds::Made(pool_core::dialogues),
        words: pool_core::WORDS,
        memory: (512 << 10, 256),
        smoke: 3000,
        ..Target::PLAIN
    },
    Target {
        name: "record",
        about: "what clients say and hear, on a tape: events are whole, and have ended or are counted",
        run: record::run,
        seeds: Seeds::Made(record::seeds),
        words: record::WORDS,
        memory: (4 << 20, 512),
        smoke: 2000,
        ..Target::PLAIN
    },
    Target {
        name: "pool-client-login",
        about: "a client that logs in to the pooler: only who knows the password gets in",
        run: pool_login::client,
        seeds: Seeds::Made(pool_login::client_seeds),
        words: pool_login::CLIENT_WORDS,
        memory: (1 << 20, 256),
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "pool-server-login",
        about: "a server that the pooler logs in to: no password in the clear, cuts change nothing",
        run: pool_login::server,
        seeds: Seeds::Made(pool_login::server_seeds),
        words: wire::BACKEND_WORDS,
        memory: (1 << 20, 256),
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "conninfo",
        about: "connection strings: a target's URI is that target, and no password is shown",
        run: connect::conninfo,
        seeds: Seeds::Folder("conninfo"),
        words: connect::WORDS,
        bytes_max: 512,
        memory: (256 << 10, 256),
        ..Target::PLAIN
    },
    Target {
        name: "passfile",
        about: "password files: the first line that fits is found in any company",
        run: connect::passfile,
        seeds: Seeds::Folder("passfile"),
        words: connect::FILE_WORDS,
        memory: (256 << 10, 256),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "service",
        about: "service files: mistakes are told with their line",
        run: connect::service,
        seeds: Seeds::Folder("service"),
        words: connect::FILE_WORDS,
        memory: (256 << 10, 256),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "capture",
        about: "a capture with a damaged file: an error that names it, or events that end",
        run: dataset::capture,
        seeds: Seeds::Made(dataset::capture_seeds),
        words: dataset::WORDS,
        bytes_max: 64 << 10,
        memory: dataset::MEMORY,
        smoke: 300,
    },
    Target {
        name: "run",
        about: "a run with a damaged file, likewise",
        run: dataset::run,
        seeds: Seeds::Made(dataset::run_seeds),
        words: dataset::WORDS,
        bytes_max: 64 << 10,
        memory: dataset::MEMORY,
        smoke: 300,
    },
    Target {
        name: "server-record",
        about: "records as a server writes them: what is read is written, what is written is read",
        run: server_record::run,
        seeds: Seeds::Made(server_record::seeds),
        words: server_record::WORDS,
        ..Target::PLAIN
    },
    Target {
        name: "probe-waits",
        about: "titles of a server's processes, and what they wait for: never another's name",
        run: probe_waits::run,
        seeds: Seeds::Made(probe_waits::seeds),
        words: probe_waits::WORDS,
        bytes_max: 256,
        ..Target::PLAIN
    },
    Target {
        name: "probe-recording",
        about: "a recording of probes, damaged: what is left is read and shown, and steers nothing",
        run: probe_recording::file,
        seeds: Seeds::Made(probe_recording::file_seeds),
        words: probe_recording::WORDS,
        bytes_max: 8192,
        memory: probe_recording::MEMORY,
        smoke: 300,
    },
    Target {
        name: "probe-frames",
        about: "the records of a recording, likewise",
        run: probe_recording::frames,
        seeds: Seeds::Made(probe_recording::frames_seeds),
        words: probe_recording::WORDS,
        memory: probe_recording::MEMORY,
        smoke: 300,
        ..Target::PLAIN
    },
    Target {
        name: "words",
        about: "small words of the command line: what is read is printed, what is printed is read",
        run: words::run,
        seeds: Seeds::Folder("words"),
        words: words::WORDS,
        bytes_max: 128,
        ..Target::PLAIN
    },
    Target {
        name: "warm-image",
        about: "a cache image: a damaged one is refused",
        run: warm_image::file,
        seeds: Seeds::Made(warm_image::file_seeds),
        words: warm_image::WORDS,
        memory: (1 << 20, 64),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "warm-image-body",
        about: "the inside of a cache image: what is read has its pages in order",
        run: warm_image::body,
        seeds: Seeds::Made(warm_image::body_seeds),
        words: warm_image::WORDS,
        memory: (1 << 20, 64),
        smoke: 1000,
        ..Target::PLAIN
    },
    Target {
        name: "warm-blocks",
        about: "autoprewarm.blocks: what is read is written and read as the same",
        run: warm_image::blocks,
        seeds: Seeds::Folder("autoprewarm"),
        words: warm_image::BLOCKS_WORDS,
        memory: (64 << 10, 256),
        ..Target::PLAIN
    },
    Target {
        name: "top-recording",
        about: "a recording of top, damaged: what is left is read, and is the same when recorded again",
        run: top_recording::file,
        seeds: Seeds::Made(top_recording::file_seeds),
        words: top_recording::WORDS,
        memory: top_recording::MEMORY,
        smoke: 500,
        ..Target::PLAIN
    },
    Target {
        name: "top-frames",
        about: "the inside of two frames of a recording: texts are safe to show",
        run: top_recording::frames,
        seeds: Seeds::Made(top_recording::frames_seeds),
        words: top_recording::WORDS,
        memory: top_recording::MEMORY,
        smoke: 500,
        ..Target::PLAIN
    },
];
