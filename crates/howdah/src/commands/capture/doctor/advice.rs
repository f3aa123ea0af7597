//! The settings that matter to a capture: one table of what they should be, and why.

/// How much a capture suffers without a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A replay would not be what clients did.
    Needed,
    /// Something would be known less exactly, or the log be larger than need be.
    Useful,
}

impl Need {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::Useful => "useful",
        }
    }
}

/// A setting that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) setting: Setting,
    /// What it is, or what the log shows of it.
    pub(super) found: String,
    /// Bytes that the right setting adds to what was looked at; less than 0 if it saves.
    pub(super) adds_bytes: Option<i64>,
    /// Where it is set, if not for the whole server: `role app`, `database shop`.
    pub(super) place: Option<String>,
}

impl Finding {
    pub(super) fn new(setting: Setting, found: impl Into<String>) -> Self {
        Self { setting, found: found.into(), adds_bytes: None, place: None }
    }

    pub(super) fn adding(self, bytes: i64) -> Self {
        Self { adds_bytes: Some(bytes), ..self }
    }

    pub(super) fn need(&self) -> Need {
        self.setting.need()
    }
}

macro_rules! settings {
    ($($variant:ident, $name:literal, $since:literal, $need:ident, $want:literal, $loses:literal;)*) => {
        /// A setting of PostgreSQL that decides what a log holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Setting { $($variant,)* }

        impl Setting {
            /// All of them, the most important first.
            pub(super) const ALL: &[Self] = &[$(Self::$variant,)*];

            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The first major version that has it.
            pub(super) const fn since(self) -> u32 {
                match self { $(Self::$variant => $since,)* }
            }

            pub(super) const fn need(self) -> Need {
                match self { $(Self::$variant => Need::$need,)* }
            }

            /// What it should be.
            pub(super) const fn wanted(self) -> &'static str {
                match self { $(Self::$variant => $want,)* }
            }

            /// What is lost without.
            pub(super) const fn loses(self) -> &'static str {
                match self { $(Self::$variant => $loses,)* }
            }
        }
    };
}

settings! {
    LogStatement, "log_statement", 12, Needed, "all",
        "statements faster than the threshold, and those that fail, are not in the log; the others only with the time of their end";
    MinDurationSample, "log_min_duration_sample", 13, Needed, "-1",
        "the log is a sample: a part of the load, transactions without their BEGIN or COMMIT";
    TransactionSampleRate, "log_transaction_sample_rate", 12, Needed, "0",
        "the log is a sample of transactions, beside the statements that are logged anyway";
    LinePrefix, "log_line_prefix", 12, Needed, "%m|%u|%d|%a|%c|%v|%x|%e|%Q|",
        "sessions cannot be told apart, or their users and databases are not known";
    ParameterMaxLength, "log_parameter_max_length", 13, Needed, "-1",
        "values are cut: statements that bind them are skipped";
    ErrorVerbosity, "log_error_verbosity", 12, Needed, "default",
        "terse leaves bound values out of stderr logs, so that statements are skipped; verbose adds two lines to each message";
    MinErrorStatement, "log_min_error_statement", 12, Needed, "error",
        "the text of statements that fail before they run is not in the log: they are not replayed";
    MinMessages, "log_min_messages", 12, Needed, "warning",
        "fatal and panic leave out what is said of statements, durations and connections";
    Messages, "lc_messages", 12, Needed, "C",
        "messages in other languages are not understood: their statements are not replayed";
    Collector, "logging_collector", 12, Needed, "on",
        "lines are lost or mixed when many sessions write at once";
    Duration, "log_duration", 12, Useful, "on",
        "how long statements took in production is not known, nor which of them timed out";
    MinDurationStatement, "log_min_duration_statement", 12, Useful, "-1",
        "the text of each statement is logged up to three times: for its parse, its bind and its execution";
    ParameterMaxLengthOnError, "log_parameter_max_length_on_error", 13, Useful, "-1",
        "values of statements that fail before they run are not in the log: they are not replayed";
    Connections, "log_connections", 12, Useful, "on",
        "sessions begin with their first statement: the cost of connecting is not replayed";
    Disconnections, "log_disconnections", 12, Useful, "on",
        "sessions end with the capture: the target holds more connections than production did";
    Timezone, "log_timezone", 12, Useful, "UTC",
        "an hour is ambiguous when summer time ends, and abbreviations of zones have several meanings";
    QueryId, "compute_query_id", 14, Useful, "on",
        "statements cannot be matched with pg_stat_statements by their query_id";
    Destination, "log_destination", 12, Useful, "jsonlog",
        "values with line breaks and names with odd characters are guessed at; transactions and pipelines are known only if the prefix has %v";
}

impl Setting {
    /// The value for a server of a major version, as it is written in SQL and in postgresql.conf.
    pub(super) fn wanted_by(self, major: u32) -> &'static str {
        match self {
            Self::Destination if major < 15 => "csvlog",
            _ => self.wanted(),
        }
    }

    /// The same in quotes where it needs them.
    pub(super) fn quoted(self, major: u32) -> String {
        let value = self.wanted_by(major);
        // ALL is a word that SQL reserves.
        let plain = value != "all" && value.bytes().all(|byte| byte.is_ascii_lowercase());
        let number = value.parse::<i64>().is_ok();
        if plain || number { value.to_owned() } else { format!("'{value}'") }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|setting| setting.name() == name)
    }
}

/// What is missing from a `log_line_prefix`, in words; nothing if it will do.
pub(super) fn lacks_of_prefix(prefix: &str) -> Option<String> {
    let escapes = escapes(prefix);
    let has = |any: &str| escapes.iter().any(|escape| any.contains(*escape));
    let mut lacks = Vec::new();
    for (any, words) in [
        ("mtn", "the time (%m)"),
        ("cp", "the session (%c)"),
        ("u", "the user (%u)"),
        ("d", "the database (%d)"),
    ] {
        if !has(any) {
            lacks.push(words);
        }
    }
    (!lacks.is_empty()).then(|| format!("'{prefix}', without {}", lacks.join(", ")))
}

/// The letters of a prefix's escapes.
fn escapes(prefix: &str) -> Vec<char> {
    let mut letters = Vec::new();
    let mut chars = prefix.chars();
    while let Some(c) = chars.next() {
        if c == '%' {
            // Padding is a sign and digits.
            letters.extend(chars.by_ref().find(|c| !(c.is_ascii_digit() || *c == '-')));
        }
    }
    letters
}

#[test]
fn a_prefix_is_judged_by_its_escapes() {
    assert_eq!(lacks_of_prefix(Setting::LinePrefix.wanted()), None);
    assert_eq!(lacks_of_prefix("%t:%r:%u@%d:[%p]:"), None);
    assert_eq!(lacks_of_prefix("%-20m %8p %u%d"), None);
    assert_eq!(
        lacks_of_prefix("%m [%p] ").as_deref(),
        Some("'%m [%p] ', without the user (%u), the database (%d)")
    );
    assert!(lacks_of_prefix("%%m %u %d %c").is_some());
}
