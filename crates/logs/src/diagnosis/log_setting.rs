//! The settings that affect a capture: a table of recommended values and the reasons for them.

/// The importance of a setting for a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// Without a suitable value, a replay may differ considerably from what clients did.
    Required,
    /// Without a suitable value, the capture is less precise, or the log is larger than necessary.
    Useful,
}

impl Importance {
    /// Returns the name shown in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "needed",
            Self::Useful => "useful",
        }
    }
}

macro_rules! settings {
    ($($variant:ident, $name:literal, $since:literal, $need:ident, $want:literal, $loses:literal;)*) => {
        /// A PostgreSQL setting that affects what the log contains.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum LogSetting { $(#[doc = concat!("`", $name, "`")] $variant,)* }

        impl LogSetting {
            /// All settings, most important first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the setting's name in PostgreSQL.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the first major version of PostgreSQL, from 12 on, with this setting.
            pub(super) const fn since(self) -> u32 {
                match self { $(Self::$variant => $since,)* }
            }

            /// Returns the importance of the setting for a capture.
            pub const fn importance(self) -> Importance {
                match self { $(Self::$variant => Importance::$need,)* }
            }

            /// Returns the recommended value for the newest version of PostgreSQL.
            pub(super) const fn recommended(self) -> &'static str {
                match self { $(Self::$variant => $want,)* }
            }

            /// Returns the consequences of unsuitable values, for display.
            pub const fn consequence(self) -> &'static str {
                match self { $(Self::$variant => $loses,)* }
            }
        }
    };
}

settings! {
    LogStatement, "log_statement", 12, Required, "all",
        "statements below the duration threshold and failed ones are missing; the others have only the time of their end";
    MinDurationSample, "log_min_duration_sample", 13, Required, "-1",
        "the log is a sample: only a part of the load, with transactions missing their BEGIN or COMMIT";
    TransactionSampleRate, "log_transaction_sample_rate", 12, Required, "0",
        "the log contains a sample of transactions, in addition to the statements logged anyway";
    LinePrefix, "log_line_prefix", 12, Required, "%m|%u|%d|%a|%c|%v|%x|%e|%Q|",
        "sessions cannot be distinguished, or their users and databases are unknown";
    ParameterMaxLength, "log_parameter_max_length", 13, Required, "-1",
        "bound values are truncated: statements with them are skipped";
    ErrorVerbosity, "log_error_verbosity", 12, Required, "default",
        "terse omits bound values from stderr logs, so their statements are skipped; verbose adds two lines to each message";
    MinErrorStatement, "log_min_error_statement", 12, Required, "error",
        "the text of statements that fail before execution is missing: they are not replayed";
    MinMessages, "log_min_messages", 12, Required, "warning",
        "fatal and panic suppress messages about statements, durations and connections";
    Messages, "lc_messages", 12, Required, "C",
        "messages in other languages cannot be parsed: their statements are not replayed";
    Collector, "logging_collector", 12, Required, "on",
        "lines are lost or interleaved when many sessions write at once";
    Duration, "log_duration", 12, Useful, "on",
        "the durations of statements in production are unknown, and which of them timed out";
    MinDurationStatement, "log_min_duration_statement", 12, Useful, "-1",
        "the text of each statement is logged up to three times: for its parse, its bind and its execution";
    ParameterMaxLengthOnError, "log_parameter_max_length_on_error", 13, Useful, "-1",
        "values of statements that fail before execution are missing: they are not replayed";
    Connections, "log_connections", 12, Useful, "on",
        "sessions start with their first statement: the cost of connecting is not replayed";
    Disconnections, "log_disconnections", 12, Useful, "on",
        "sessions end with the capture: the target has more open connections than production had";
    Timezone, "log_timezone", 12, Useful, "UTC",
        "an hour is ambiguous when daylight saving time ends, and zone abbreviations are ambiguous";
    QueryId, "compute_query_id", 14, Useful, "on",
        "statements cannot be matched with pg_stat_statements by their query_id";
    Destination, "log_destination", 12, Useful, "jsonlog",
        "values with line breaks and unusual names are ambiguous; transactions and pipelines are known only if the prefix has %v";
}

impl LogSetting {
    /// Returns the recommended value for a major version, without quotes.
    pub(super) fn recommended_for(self, major: u32) -> &'static str {
        match self {
            Self::Destination if major < 15 => "csvlog",
            _ => self.recommended(),
        }
    }

    /// Returns the recommended value in the syntax of both SQL and postgresql.conf, in quotes
    /// unless it is a number or a plain word.
    pub(super) fn quoted(self, major: u32) -> String {
        let value = self.recommended_for(major);
        // ALL is a reserved keyword in SQL.
        let plain = value != "all" && value.bytes().all(|byte| byte.is_ascii_lowercase());
        let number = value.parse::<i64>().is_ok();
        if plain || number { value.to_owned() } else { format!("'{value}'") }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|setting| setting.name() == name)
    }
}

/// Describes what is missing from a `log_line_prefix`; `None` if it is sufficient.
pub(super) fn missing_escapes(prefix: &str) -> Option<String> {
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

/// Returns the escape characters in a prefix.
fn escapes(prefix: &str) -> Vec<char> {
    let mut letters = Vec::new();
    let mut chars = prefix.chars();
    while let Some(c) = chars.next() {
        if c == '%' {
            // Skip the padding: a sign and digits.
            letters.extend(chars.by_ref().find(|c| !(c.is_ascii_digit() || *c == '-')));
        }
    }
    letters
}

#[test]
fn prefix_is_checked_for_required_escapes() {
    assert_eq!(missing_escapes(LogSetting::LinePrefix.recommended()), None);
    assert_eq!(missing_escapes("%t:%r:%u@%d:[%p]:"), None);
    assert_eq!(missing_escapes("%-20m %8p %u%d"), None);
    assert_eq!(
        missing_escapes("%m [%p] ").as_deref(),
        Some("'%m [%p] ', without the user (%u), the database (%d)")
    );
    assert!(missing_escapes("%%m %u %d %c").is_some());
}
