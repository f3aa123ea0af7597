//! The page that lists past rehearsals, the newest first.

use std::fmt::Write as _;

use howdah_traffic::Timestamp;

use super::{PAGE_STYLE, from_report, queries::grouped};
use crate::{
    chart::escaped,
    page::{HtmlPage, WebPage},
    rehearsal::RehearsalVerdict,
};

pub(super) const INDEX_STYLE: &str = include_str!("index.css");

/// Past rehearsals in one folder.
#[derive(Clone, Debug, Default)]
pub struct RehearsalIndex {
    /// Path of the folder.
    pub folder: String,
    /// The rehearsals, in the order of the page.
    pub rows: Vec<IndexRow>,
    /// Limitations of the list, one sentence each.
    pub notes: Vec<String>,
}

/// One past rehearsal. All texts are plain text; links are relative URLs.
#[derive(Clone, Debug)]
pub struct IndexRow {
    /// Path of the rehearsal's folder, relative to the index's folder; empty if they are the same.
    pub folder: String,
    /// The verdict, or the reason why there is none.
    pub outcome: IndexOutcome,
    /// The result in one line; without a result, what is known instead.
    pub summary: String,
    /// Time at which the rehearsal started, if known.
    pub started: Option<Timestamp>,
    /// Name of the rehearsed database; empty if unknown.
    pub database: String,
    /// Versions of the servers, such as `PostgreSQL 16.4 to 17.2`; empty if unknown.
    pub versions: String,
    /// Number of slower queries, if known.
    pub slower: Option<u64>,
    /// Link to the report as HTML, if there is one.
    pub report: Option<String>,
    /// Names and links of other files.
    pub downloads: Vec<(&'static str, String)>,
}

/// The outcome of a past rehearsal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOutcome {
    /// The rehearsal has a report with this verdict.
    Verdict(RehearsalVerdict),
    /// The rehearsal has no report yet.
    Unfinished,
    /// The files of the rehearsal cannot be read.
    Unreadable,
}

/// Describes the versions of both servers: `PostgreSQL 16.4`, or `PostgreSQL 16.4 to 17.2` if they
/// differ.
pub fn version_change(base: &str, change: &str) -> String {
    if base == change {
        format!("PostgreSQL {base}")
    } else {
        format!("PostgreSQL {base} to {change}")
    }
}

/// Renders the list of past rehearsals as a page.
pub fn index_page(index: &RehearsalIndex) -> WebPage {
    HtmlPage {
        title: "Rehearsals",
        styles: &[PAGE_STYLE, INDEX_STYLE],
        body: &body(index),
        ..HtmlPage::default()
    }
    .render_for_web()
}

fn body(index: &RehearsalIndex) -> String {
    let mut html = format!(
        "<header class=\"top plain\"><div class=\"inner\">\n<p class=\"subject soft\">{}</p>\n\
         <h1>Rehearsals</h1>\n<p class=\"lead\">{}.</p>\n",
        escaped(&index.folder),
        escaped(&crate::counted(index.rows.len() as u64, "rehearsal")),
    );
    for note in &index.notes {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(note));
    }
    html.push_str("</div></header>\n<main>\n");
    if index.rows.is_empty() {
        html.push_str(
            "<p>No rehearsal was found in this folder. <code>howdah rehearse</code> writes one to the \
             folder given by <code>--output</code>.</p>\n",
        );
    } else {
        html.push_str(
            "<div class=\"scroll\" role=\"region\" aria-label=\"Rehearsals\" tabindex=\"0\">\
             <table class=\"rehearsals\">\n<thead><tr><th scope=\"col\">verdict</th>\
             <th scope=\"col\">rehearsal</th><th scope=\"col\">started</th>\
             <th scope=\"col\" class=\"number\">slower queries</th><th scope=\"col\">files</th></tr></thead>\n\
             <tbody>\n",
        );
        index.rows.iter().for_each(|row| self::row(&mut html, row));
        html.push_str("</tbody></table></div>\n");
    }
    html.push_str("</main>\n");
    html
}

fn row(html: &mut String, row: &IndexRow) {
    let (class, sign, verdict) = match row.outcome {
        IndexOutcome::Verdict(RehearsalVerdict::Passed) => ("good", "✓", "passed"),
        IndexOutcome::Verdict(RehearsalVerdict::Failed) => ("bad", "✕", "failed"),
        IndexOutcome::Verdict(RehearsalVerdict::NotComparable) => ("warn", "?", "not comparable"),
        IndexOutcome::Unfinished => ("plain", "…", "not finished"),
        IndexOutcome::Unreadable => ("plain", "!", "not readable"),
    };
    let title = match (row.database.as_str(), row.versions.as_str()) {
        ("", _) => "Rehearsal".to_owned(),
        (database, "") => format!("Rehearsal of {database}"),
        (database, versions) => format!("Rehearsal of {database}: {versions}"),
    };
    let title = escaped(&title);
    let title = match &row.report {
        Some(link) => format!("<a href=\"{}\">{title}</a>", escaped(link)),
        None => title,
    };
    let folder = if row.folder.is_empty() { "." } else { &row.folder };
    let started = row.started.map_or_else(|| "–".to_owned(), from_report::time);
    let slower = row.slower.map_or_else(|| "–".to_owned(), grouped);
    let _ = write!(
        html,
        "<tr><td><span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {verdict}</span></td>\
         <th scope=\"row\">{title}<span class=\"summary\">{}</span><span class=\"soft folder\">{}</span></th>\
         <td class=\"time\">{}</td><td class=\"number\">{slower}</td><td class=\"files\">",
        escaped(&row.summary),
        escaped(folder),
        escaped(&started),
    );
    for (name, link) in &row.downloads {
        let _ = write!(html, "<a href=\"{}\" download>{name}</a> ", escaped(link));
    }
    html.push_str("</td></tr>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> IndexRow {
        IndexRow {
            folder: "<upgrade>".to_owned(),
            outcome: IndexOutcome::Verdict(RehearsalVerdict::Failed),
            summary: "failed: 1 of 14 queries slower".to_owned(),
            started: Some(Timestamp::from_micros(1_795_178_599_577_000)),
            database: "\"shop".to_owned(),
            versions: version_change("16.4", "17.2"),
            slower: Some(1_234),
            report: Some("rehearsals/%3Cupgrade%3E/report.html".to_owned()),
            downloads: vec![("JSON", "rehearsals/%3Cupgrade%3E/report.json".to_owned())],
        }
    }

    #[test]
    fn row_has_verdict_in_words_and_escaped_texts() {
        let page = index_page(&RehearsalIndex {
            folder: "/srv/<b>".to_owned(),
            rows: vec![sample()],
            notes: vec!["1 < 2".to_owned()],
        });
        for text in [
            "<span class=\"badge bad\"><span aria-hidden=\"true\">✕</span> failed</span>",
            "<a href=\"rehearsals/%3Cupgrade%3E/report.html\">Rehearsal of &quot;shop: PostgreSQL 16.4 to 17.2</a>",
            "2026-11-20 12:43:19 UTC",
            "&lt;upgrade&gt;",
            "/srv/&lt;b&gt;",
            "1 &lt; 2",
            "1 rehearsal.",
        ] {
            assert!(page.html.contains(text), "{text} in {}", page.html);
        }
        assert!(!page.html.contains("<script") && !page.policy.contains("script-src"));
        assert_eq!(crate::hashed_policy(page.html.as_bytes()), Some(page.policy.as_str()));
    }

    #[test]
    fn empty_index_says_how_to_make_a_rehearsal() {
        let page = index_page(&RehearsalIndex::default());
        assert!(page.html.contains("No rehearsal was found"), "{}", page.html);
        assert_eq!(version_change("17.2", "17.2"), "PostgreSQL 17.2");
    }
}
