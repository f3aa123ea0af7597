//! Checks the log settings of a running server.

use std::collections::BTreeMap;

use super::{
    ALL_ROLES, Finding, LoggingDiagnosis, Remedy,
    log_setting::{LogSetting, missing_escapes},
};

/// The settings of a running server, as read by the caller. Any role may read them.
#[derive(Clone, Debug, Default)]
pub struct ServerLogSettings {
    /// Values by name: those named by [`Self::names`], and all with one of [`Self::PREFIXES`].
    pub values: BTreeMap<String, String>,
    /// Values set for roles and databases, which override `values`.
    pub overrides: Vec<SettingOverride>,
}

/// A setting made by `ALTER ROLE … SET` or `ALTER DATABASE … SET`: for a role, a database, a role
/// in a database, or, if neither is given, all roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingOverride {
    /// The database; `None` if it applies to all.
    pub database: Option<String>,
    /// The role; `None` if it applies to all.
    pub role: Option<String>,
    /// The setting.
    pub name: String,
    /// The value, as in `ALTER ROLE … SET`.
    pub value: String,
}

impl ServerLogSettings {
    /// Prefixes of the settings that only managed services have.
    pub const PREFIXES: &[&str] = &[RDS, CLOUD_SQL];

    /// Names of the settings that a diagnosis uses, except those with one of [`Self::PREFIXES`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        let others = [SERVER_VERSION, SAMPLE_RATE];
        LogSetting::ALL.iter().map(|setting| setting.name()).chain(others)
    }
}

const RDS: &str = "rds.";
const CLOUD_SQL: &str = "cloudsql.";
const SERVER_VERSION: &str = "server_version_num";
const SAMPLE_RATE: &str = "log_statement_sample_rate";

/// Checks the log settings of a server. The result refers to the server as `subject`.
pub fn diagnose_server(subject: String, settings: &ServerLogSettings) -> LoggingDiagnosis {
    let ServerLogSettings { values, overrides } = settings;
    let remedy = remedy(values);
    let major = values.get(SERVER_VERSION).and_then(|number| number.parse::<u32>().ok());
    let major = major.map(|number| number / 10_000);
    let mut findings = Vec::new();
    let is_known = |setting: &LogSetting| major.is_none_or(|major| setting.since() <= major);
    for setting in LogSetting::ALL.iter().copied().filter(is_known) {
        let value = values.get(setting.name());
        if let Some(found) =
            value.and_then(|value| unsuitable_value(setting, value, values, remedy))
        {
            findings.push(Finding::new(setting, found));
        }
    }
    for change in overrides {
        if let Some(setting) = LogSetting::from_name(&change.name)
            && let Some(found) = unsuitable_value(setting, &change.value, values, remedy)
        {
            let scope = Some(change.scope());
            findings.push(Finding { scope, ..Finding::new(setting, found) });
        }
    }
    findings.sort_by_key(|finding| (finding.importance(), finding.setting));
    LoggingDiagnosis { subject, findings, notes: notes(remedy, major), remedy, major }
}

impl SettingOverride {
    fn scope(&self) -> String {
        match (&self.database, &self.role) {
            (Some(database), Some(role)) => format!("role {role} in database {database}"),
            (Some(database), None) => format!("database {database}"),
            (None, Some(role)) => format!("role {role}"),
            (None, None) => ALL_ROLES.to_owned(),
        }
    }
}

type InstalledSettings = BTreeMap<String, String>;

/// Returns the value if it is unsuitable for a capture, with what it lacks in the case of a line
/// prefix; `None` otherwise.
fn unsuitable_value(
    setting: LogSetting,
    value: &str,
    all: &InstalledSettings,
    remedy: Remedy,
) -> Option<String> {
    let other = |name: &str| all.get(name).map_or("", String::as_str);
    let managed = matches!(remedy, Remedy::Rds | Remedy::CloudSql);
    let stderr_only =
        other("log_destination").split(',').all(|one| !matches!(one.trim(), "csvlog" | "jsonlog"));
    let is_suitable = match setting {
        LogSetting::LogStatement => value == "all",
        LogSetting::MinDurationSample => value == "-1" || other(SAMPLE_RATE).parse() == Ok(1.0),
        LogSetting::TransactionSampleRate => value.parse() == Ok(0.0),
        // The other formats have all fields regardless of the prefix.
        LogSetting::LinePrefix => return stderr_only.then(|| missing_escapes(value)).flatten(),
        LogSetting::ParameterMaxLength
        | LogSetting::ParameterMaxLengthOnError
        | LogSetting::MinDurationStatement => value == "-1",
        // In this setting, LOG ranks above ERROR.
        LogSetting::MinMessages => !matches!(value, "fatal" | "panic"),
        LogSetting::ErrorVerbosity => value == "default" || value == "terse" && !stderr_only,
        // Higher levels omit the statements of plain errors, and LOG ranks higher here.
        LogSetting::MinErrorStatement => matches!(
            value,
            "error"
                | "warning"
                | "notice"
                | "info"
                | "debug1"
                | "debug2"
                | "debug3"
                | "debug4"
                | "debug5"
        ),
        LogSetting::Messages => {
            ["C", "POSIX"].contains(&value) || value.starts_with("en_") || value.starts_with("C.")
        }
        LogSetting::Collector => value == "on" || managed,
        LogSetting::Duration | LogSetting::Disconnections => value == "on",
        // Since PostgreSQL 18, the value is a list of aspects.
        LogSetting::Connections => !matches!(value, "off" | ""),
        LogSetting::Timezone => ["UTC", "Etc/UTC", "GMT"].contains(&value),
        LogSetting::QueryId => value != "off",
        LogSetting::Destination => !stderr_only || managed,
    };
    (!is_suitable).then(|| value.to_owned())
}

fn remedy(settings: &InstalledSettings) -> Remedy {
    let any = |prefix: &str| settings.keys().any(|name| name.starts_with(prefix));
    if any(RDS) {
        Remedy::Rds
    } else if any(CLOUD_SQL) {
        Remedy::CloudSql
    } else {
        Remedy::Sql
    }
}

fn notes(remedy: Remedy, major: Option<u32>) -> Vec<String> {
    let mut notes = vec![
        "superusers and roles with the SET privilege on them can change log settings in their sessions"
            .to_owned(),
    ];
    match remedy {
        Remedy::Rds => notes.push(
            "on RDS and Aurora these are parameters of the DB parameter group; log_destination = \
             csvlog adds .csv files; log_line_prefix can be changed since version 14"
                .to_owned(),
        ),
        Remedy::CloudSql => notes.push(
            "on Cloud SQL these are flags of the instance (gcloud sql instances patch NAME \
             --database-flags=…, which replaces all flags); the log is read from Cloud Logging as JSON"
                .to_owned(),
        ),
        Remedy::File | Remedy::Sql => {}
    }
    if major.is_some_and(|major| major < 13) {
        notes.push("before PostgreSQL 13, values are never truncated".to_owned());
    }
    notes
}
