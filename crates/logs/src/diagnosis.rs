//! Diagnoses logging settings: whether they allow a complete capture, and which ones to change.
//!
//! The settings are either inferred from a log ([`diagnose_logs`]) or those of a server
//! ([`diagnose_server`]). The caller queries the server; this module does not.

mod from_log;
mod from_server;
mod log_setting;

use std::collections::BTreeSet;

pub use self::{
    from_log::diagnose_logs,
    from_server::{ServerLogSettings, SettingOverride, diagnose_server},
    log_setting::{Importance, LogSetting},
};

/// A report on the log settings of a server, or of the server that wrote some logs.
#[derive(Clone, Debug)]
pub struct LoggingDiagnosis {
    /// Description of the examined logs or server, for display.
    pub subject: String,
    /// Settings that should be changed, most important first.
    pub findings: Vec<Finding>,
    /// Remarks that are not about a single setting.
    pub notes: Vec<String>,
    /// The place where the settings are changed.
    pub remedy: Remedy,
    /// The server's major version; `None` if unknown.
    pub major: Option<u32>,
}

/// A setting that should be changed, as far as the log or the server's settings show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The setting to change.
    pub setting: LogSetting,
    /// The current value, or evidence that the value is not suitable.
    pub found: String,
    /// Estimated bytes that the recommended value adds to the examined log, negative if it makes
    /// the log smaller; `None` without an estimate.
    pub adds_bytes: Option<i64>,
    /// The role or database that overrides the server-wide value: `role app`, `database shop`,
    /// `role app in database shop` or `all roles`; `None` for the server-wide value.
    pub scope: Option<String>,
}

/// The place where settings are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// postgresql.conf, edited by hand, because only a log was examined.
    File,
    /// `ALTER SYSTEM`.
    Sql,
    /// The parameter group of Amazon RDS or Aurora.
    Rds,
    /// The flags of a Cloud SQL instance.
    CloudSql,
}

impl Finding {
    fn new(setting: LogSetting, found: impl Into<String>) -> Self {
        Self { setting, found: found.into(), adds_bytes: None, scope: None }
    }

    fn adding(self, bytes: i64) -> Self {
        Self { adds_bytes: Some(bytes), ..self }
    }

    /// Returns the importance of the setting for a capture.
    pub fn importance(&self) -> Importance {
        self.setting.importance()
    }
}

impl LoggingDiagnosis {
    /// Whether any finding is [required](Importance::Required) for a faithful replay.
    pub fn has_required_findings(&self) -> bool {
        self.findings.iter().any(|finding| finding.importance() == Importance::Required)
    }

    /// Returns the recommended value of a setting for the server's major version, or for the newest
    /// version if that is unknown.
    pub fn recommended(&self, setting: LogSetting) -> &'static str {
        setting.recommended_for(self.major_or_newest())
    }

    fn major_or_newest(&self) -> u32 {
        self.major.unwrap_or(u32::MAX)
    }

    /// Returns lines that change the settings, in the syntax of the place where they are changed.
    /// They may include a command to reload the configuration, and comments.
    pub fn remedy_lines(&self) -> Vec<String> {
        let mut listed = BTreeSet::new();
        let mut lines = Vec::new();
        for Finding { setting, scope, .. } in &self.findings {
            if let Some(scope) = scope {
                if self.remedy != Remedy::File && scope != ALL_ROLES {
                    let name = setting.name();
                    lines.push(format!("-- {scope} has its own {name}: reset it there"));
                }
                continue;
            }
            if listed.insert(*setting) {
                let (name, value) = (setting.name(), setting.quoted(self.major_or_newest()));
                lines.push(match self.remedy {
                    Remedy::Sql => format!("ALTER SYSTEM SET {name} = {value};"),
                    _ => format!("{name} = {value}"),
                });
            }
        }
        if self.remedy == Remedy::Sql && !lines.is_empty() {
            lines.push("SELECT pg_reload_conf();".to_owned());
            if listed.contains(&LogSetting::Collector) {
                lines.push("-- logging_collector requires a restart".to_owned());
            }
        }
        lines
    }
}

/// The scope of a setting made by `ALTER ROLE ALL`.
const ALL_ROLES: &str = "all roles";
