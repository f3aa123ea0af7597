//! Checks the log settings of a running server.

use std::collections::BTreeMap;

use anyhow::Context as _;
use howdah_connect::{Client, ConnectTarget};

use super::{
    LoggingDiagnosis, Remedy,
    advice::{Finding, LogSetting, missing_escapes},
};
use crate::connection;

/// Queries the settings. Works with any role: none of these settings is restricted.
pub(super) fn examine(target: &ConnectTarget) -> anyhow::Result<LoggingDiagnosis> {
    let mut client = connection::connect(target)?;
    let version = client.parameter("server_version").unwrap_or_default().to_owned();
    let subject = format!("{}: PostgreSQL {version}", client.endpoint());
    let settings = settings(&mut client).context("cannot read pg_settings")?;
    let overrides = overrides(&mut client).context("cannot read pg_db_role_setting")?;
    client.close();
    let remedy = remedy(&settings);
    let major = settings
        .get("server_version_num")
        .and_then(|number| number.parse::<u32>().ok())
        .map_or(u32::MAX, |number| number / 10_000);
    let mut findings = Vec::new();
    for setting in LogSetting::ALL.iter().copied().filter(|setting| setting.since() <= major) {
        let value = settings.get(setting.name()).map(String::as_str);
        if let Some(found) =
            value.and_then(|value| unsuitable_value(setting, value, &settings, remedy))
        {
            findings.push(Finding::new(setting, found));
        }
    }
    for (place, name, value) in overrides {
        if let Some(setting) = LogSetting::from_name(&name)
            && let Some(found) = unsuitable_value(setting, &value, &settings, remedy)
        {
            findings.push(Finding { place: Some(place), ..Finding::new(setting, found) });
        }
    }
    findings.sort_by_key(|finding| (finding.importance(), finding.setting));
    Ok(LoggingDiagnosis { subject, findings, notes: notes(remedy, major), remedy })
}

type InstalledSettings = BTreeMap<String, String>;

fn settings(client: &mut Client) -> Result<InstalledSettings, howdah_connect::QueryError> {
    let names: Vec<_> =
        LogSetting::ALL.iter().map(|setting| format!("'{}'", setting.name())).collect();
    let results = client.query(&format!(
        "select name, setting from pg_catalog.pg_settings where name in ({}) \
         or name in ('server_version_num', 'log_statement_sample_rate') \
         or name like 'rds.%' or name like 'cloudsql.%'",
        names.join(", ")
    ))?;
    let rows = results.into_iter().flat_map(|result| result.rows);
    let pair = |row: howdah_connect::ResultRow| Some((row.text(0)?.into(), row.text(1)?.into()));
    Ok(rows.filter_map(pair).collect())
}

/// Settings of roles and databases: where, name and value.
fn overrides(
    client: &mut Client,
) -> Result<Vec<(String, String, String)>, howdah_connect::QueryError> {
    let results = client.query(
        "select d.datname, r.rolname, c.setting \
         from pg_catalog.pg_db_role_setting s \
         left join pg_catalog.pg_database d on d.oid = s.setdatabase \
         left join pg_catalog.pg_roles r on r.oid = s.setrole, \
         pg_catalog.unnest(s.setconfig) as c(setting) \
         where c.setting like 'log%' or c.setting like 'lc_messages=%' \
         or c.setting like 'compute_query_id=%' order by 1, 2, 3",
    )?;
    let mut overrides = Vec::new();
    for row in results.into_iter().flat_map(|result| result.rows) {
        let place = match (row.text(0), row.text(1)) {
            (Some(database), Some(role)) => format!("role {role} in database {database}"),
            (Some(database), None) => format!("database {database}"),
            (None, Some(role)) => format!("role {role}"),
            (None, None) => "all roles".to_owned(),
        };
        if let Some((name, value)) = row.text(2).as_deref().and_then(|text| text.split_once('=')) {
            overrides.push((place, name.to_owned(), value.to_owned()));
        }
    }
    Ok(overrides)
}

/// The value, if it is not suitable for a capture; `None` if it is.
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
        LogSetting::MinDurationSample => {
            value == "-1" || other("log_statement_sample_rate").parse() == Ok(1.0)
        }
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
        // A list of aspects since PostgreSQL 18.
        LogSetting::Connections => !matches!(value, "off" | ""),
        LogSetting::Timezone => ["UTC", "Etc/UTC", "GMT"].contains(&value),
        LogSetting::QueryId => value != "off",
        LogSetting::Destination => !stderr_only || managed,
    };
    (!is_suitable).then(|| value.to_owned())
}

fn remedy(settings: &InstalledSettings) -> Remedy {
    let any = |prefix: &str| settings.keys().any(|name| name.starts_with(prefix));
    if any("rds.") {
        Remedy::Rds
    } else if any("cloudsql.") {
        Remedy::CloudSql
    } else {
        Remedy::Sql
    }
}

fn notes(remedy: Remedy, major: u32) -> Vec<String> {
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
    if major < 13 {
        notes.push("before PostgreSQL 13, values are never truncated".to_owned());
    }
    notes
}
