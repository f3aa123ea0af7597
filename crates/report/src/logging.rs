//! Renders diagnoses of logging settings: a table for terminals, a document for programs.

use std::fmt::Write as _;

use howdah_logs::diagnosis::{Finding, Importance, LoggingDiagnosis, Remedy};
use serde::Serialize;

use crate::text;

/// Renders the diagnosis as text: findings by importance, lines to copy, and notes.
pub fn table(diagnosis: &LoggingDiagnosis) -> String {
    let mut out = format!("{}\n", diagnosis.subject);
    if diagnosis.findings.is_empty() {
        out.push_str("nothing is missing\n");
    }
    for importance in [Importance::Required, Importance::Useful] {
        let findings = diagnosis.findings.iter();
        let findings = findings.filter(|finding| finding.importance() == importance);
        for (number, finding) in findings.enumerate() {
            if number == 0 {
                let _ = writeln!(out, "\n{}", importance.as_str());
            }
            row(&mut out, finding);
        }
    }
    remedy(&mut out, diagnosis);
    for (number, note) in diagnosis.notes.iter().enumerate() {
        let space = if number == 0 { "\n" } else { "" };
        let _ = writeln!(out, "{space}note: {note}");
    }
    out
}

fn row(out: &mut String, finding: &Finding) {
    let scope = finding.scope.as_ref().map_or(String::new(), |scope| format!(" for {scope}"));
    let _ = writeln!(out, "  {}{scope}: {}", finding.setting.name(), finding.found);
    let _ = writeln!(out, "    without: {}", finding.setting.consequence());
    if let Some(bytes) = finding.adds_bytes {
        let more = if bytes >= 0 { "more" } else { "less" };
        let _ = writeln!(out, "    volume:  about {} {more}", text::bytes(bytes.unsigned_abs()));
    }
}

/// Appends the configuration lines that the user can copy.
fn remedy(out: &mut String, diagnosis: &LoggingDiagnosis) {
    let lines = diagnosis.remedy_lines();
    if lines.is_empty() {
        return;
    }
    let head = match diagnosis.remedy {
        Remedy::File => "postgresql.conf:",
        Remedy::Sql => "as a superuser:",
        Remedy::Rds => "DB parameter group:",
        Remedy::CloudSql => "database flags:",
    };
    let _ = writeln!(out, "\n{head}");
    for line in lines {
        let _ = writeln!(out, "  {line}");
    }
}

/// A diagnosis for programs. Fields are in alphabetical order.
#[derive(Debug, Serialize)]
pub struct DiagnosisDocument<'a> {
    findings: Vec<SettingDocument<'a>>,
    notes: &'a [String],
    remedy: Vec<String>,
    subject: &'a str,
}

#[derive(Debug, Serialize)]
struct SettingDocument<'a> {
    adds_bytes: Option<i64>,
    found: &'a str,
    loses: &'static str,
    need: &'static str,
    place: Option<&'a str>,
    setting: &'static str,
    wanted: &'static str,
}

/// Converts a diagnosis for serialization.
pub fn document(diagnosis: &LoggingDiagnosis) -> DiagnosisDocument<'_> {
    let findings = diagnosis.findings.iter().map(|finding| SettingDocument {
        adds_bytes: finding.adds_bytes,
        found: &finding.found,
        loses: finding.setting.consequence(),
        need: finding.importance().as_str(),
        place: finding.scope.as_deref(),
        setting: finding.setting.name(),
        wanted: diagnosis.recommended(finding.setting),
    });
    DiagnosisDocument {
        findings: findings.collect(),
        notes: &diagnosis.notes,
        remedy: diagnosis.remedy_lines(),
        subject: &diagnosis.subject,
    }
}
