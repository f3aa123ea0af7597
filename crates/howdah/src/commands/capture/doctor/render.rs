//! Renders a diagnosis as text and as JSON.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::{
    LoggingDiagnosis, Remedy,
    advice::{Finding, Importance, LogSetting},
};

pub(super) fn table(out: &mut impl Write, diagnosis: &LoggingDiagnosis) -> io::Result<()> {
    writeln!(out, "{}", diagnosis.subject)?;
    if diagnosis.findings.is_empty() {
        writeln!(out, "nothing is missing")?;
    }
    for need in [Importance::Required, Importance::Useful] {
        let found = diagnosis.findings.iter().filter(|finding| finding.importance() == need);
        for (number, finding) in found.enumerate() {
            if number == 0 {
                writeln!(out, "\n{}", need.as_str())?;
            }
            row(out, finding)?;
        }
    }
    remedy(out, diagnosis)?;
    for (number, note) in diagnosis.notes.iter().enumerate() {
        let space = if number == 0 { "\n" } else { "" };
        writeln!(out, "{space}note: {note}")?;
    }
    Ok(())
}

fn row(out: &mut impl Write, finding: &Finding) -> io::Result<()> {
    let place = finding.place.as_ref().map_or(String::new(), |place| format!(" for {place}"));
    writeln!(out, "  {}{place}: {}", finding.setting.name(), finding.found)?;
    writeln!(out, "    without: {}", finding.setting.consequence())?;
    match finding.adds_bytes {
        Some(bytes) if bytes >= 0 => {
            writeln!(out, "    volume:  about {} more", HumanBytes(bytes.unsigned_abs()))
        }
        Some(bytes) => {
            writeln!(out, "    volume:  about {} less", HumanBytes(bytes.unsigned_abs()))
        }
        None => Ok(()),
    }
}

/// Prints the lines to copy.
fn remedy(out: &mut impl Write, diagnosis: &LoggingDiagnosis) -> io::Result<()> {
    let lines = lines(diagnosis);
    if lines.is_empty() {
        return Ok(());
    }
    let head = match diagnosis.remedy {
        Remedy::File => "postgresql.conf:",
        Remedy::Sql => "as a superuser:",
        Remedy::Rds => "DB parameter group:",
        Remedy::CloudSql => "database flags:",
    };
    writeln!(out, "\n{head}")?;
    lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
}

/// The settings to change, in the syntax of the place where they are changed.
fn lines(diagnosis: &LoggingDiagnosis) -> Vec<String> {
    let major = major(diagnosis);
    let mut listed = BTreeSet::new();
    let mut lines = Vec::new();
    let mut restart = false;
    for finding in &diagnosis.findings {
        let setting = finding.setting;
        if let Some(place) = &finding.place {
            if diagnosis.remedy != Remedy::File && place != "all roles" {
                let (what, rest) = place.split_once(' ').unwrap_or((place, ""));
                lines.push(format!(
                    "-- {what} {rest} has its own {}: reset it there",
                    setting.name()
                ));
            }
            continue;
        }
        if !listed.insert(setting) {
            continue;
        }
        let value = setting.quoted(major);
        restart |= setting == LogSetting::Collector;
        lines.push(match diagnosis.remedy {
            Remedy::Sql => format!("ALTER SYSTEM SET {} = {value};", setting.name()),
            _ => format!("{} = {value}", setting.name()),
        });
    }
    if diagnosis.remedy == Remedy::Sql && !lines.is_empty() {
        lines.push("SELECT pg_reload_conf();".to_owned());
        if restart {
            lines.push("-- logging_collector requires a restart".to_owned());
        }
    }
    lines
}

/// The major version in the subject; the newest if unknown.
fn major(diagnosis: &LoggingDiagnosis) -> u32 {
    let version = diagnosis.subject.split("PostgreSQL ").nth(1).unwrap_or_default();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u32::MAX)
}

pub(super) fn json(out: &mut impl Write, diagnosis: &LoggingDiagnosis) -> io::Result<()> {
    let major = major(diagnosis);
    let finding = |finding: &Finding| -> Value {
        json!({
            "setting": finding.setting.name(),
            "need": finding.importance().as_str(),
            "found": finding.found,
            "wanted": finding.setting.recommended_for(major),
            "place": finding.place,
            "loses": finding.setting.consequence(),
            "adds_bytes": finding.adds_bytes,
        })
    };
    let document = json!({
        "subject": diagnosis.subject,
        "findings": diagnosis.findings.iter().map(finding).collect::<Vec<_>>(),
        "remedy": lines(diagnosis),
        "notes": diagnosis.notes,
    });
    writeln!(out, "{document:#}")
}
