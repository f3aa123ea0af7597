//! Tests with hostile folders.

use std::{fs, os::unix::fs::symlink};

use super::*;

const REPORT: &str = r#"{"format": "howdah-rehearsal-report", "version": 1, "verdict": "failed",
    "summary": "failed: 1 of 2 queries slower", "started": "STARTED",
    "servers": {"base": {"database": "shop", "version": "16.4"},
                "change": {"database": "shop", "version": "17.2"}},
    "queries": [{"verdict": "slower"}, {"verdict": "faster"}]}"#;

/// Writes a rehearsal that started at `hour`.
fn write_rehearsal(folder: &Path, hour: u32) {
    fs::create_dir_all(folder).unwrap();
    let report = REPORT.replace("STARTED", &format!("2026-11-20T{hour:02}:00:00.000000Z"));
    fs::write(folder.join("report.json"), report).unwrap();
    fs::write(folder.join("report.html"), "<p>report</p>").unwrap();
}

fn link(path: &Path, file: ReportFile) -> String {
    format!("{}|{}", path.display(), file.name)
}

fn folders(archive: &RehearsalArchive) -> Vec<String> {
    let index = archive.index(link).unwrap();
    index.rows.into_iter().map(|row| row.folder).collect()
}

#[test]
fn rehearsals_are_listed_newest_first() {
    let root = tempfile::tempdir().unwrap();
    write_rehearsal(&root.path().join("old"), 1);
    write_rehearsal(&root.path().join("team/new"), 3);
    write_rehearsal(root.path(), 2);
    // Runs and captures of a rehearsal are not searched, nor are hidden folders.
    write_rehearsal(&root.path().join("runs/a1"), 4);
    write_rehearsal(&root.path().join(".cache/x"), 4);
    let archive = RehearsalArchive::open(root.path().to_owned()).unwrap();
    assert_eq!(folders(&archive), ["team/new", "", "old"]);
    let index = archive.index(link).unwrap();
    let row = &index.rows[0];
    assert_eq!(row.outcome, IndexOutcome::Verdict(RehearsalVerdict::Failed));
    assert_eq!((row.slower, row.versions.as_str()), (Some(1), "PostgreSQL 16.4 to 17.2"));
    assert_eq!(row.report.as_deref(), Some("team/new|report.html"));
    assert_eq!(row.downloads, [("JSON", "team/new|report.json".to_owned())]);
    assert!(index.notes.is_empty(), "{:?}", index.notes);
    // A changed report is read again.
    write_rehearsal(&root.path().join("old"), 5);
    assert_eq!(folders(&archive), ["old", "team/new", ""]);
}

#[test]
fn unfinished_and_damaged_rehearsals_are_listed_without_verdict() {
    let root = tempfile::tempdir().unwrap();
    let write = |folder: &str, name: &str, text: &str| {
        fs::create_dir_all(root.path().join(folder)).unwrap();
        fs::write(root.path().join(folder).join(name), text).unwrap();
    };
    let journal = "{\"format\": \"howdah-rehearsal\", \"started\": \"2026-11-20T01:00:00Z\", \
                   \"runs\": [{}, {}]}";
    write("unfinished", "rehearsal.json", journal);
    write("damaged", "report.json", "{");
    write("foreign", "report.json", &REPORT.replace("howdah-rehearsal-report", "other"));
    write("other-journal", "rehearsal.json", &journal.replace("howdah-rehearsal", "other"));
    write("no-rehearsal", "report.html", "<p>");
    let archive = RehearsalArchive::open(root.path().to_owned()).unwrap();
    let index = archive.index(link).unwrap();
    let rows: Vec<_> = index.rows.iter().map(|row| (row.folder.as_str(), row.outcome)).collect();
    assert_eq!(
        rows,
        [
            ("unfinished", IndexOutcome::Unfinished),
            ("damaged", IndexOutcome::Unreadable),
            ("foreign", IndexOutcome::Unreadable),
            ("other-journal", IndexOutcome::Unreadable),
        ]
    );
    assert_eq!(index.rows[0].summary, "2 finished runs");
    let served = archive.read(Path::new("no-rehearsal"), HTML_REPORT);
    assert_eq!(served.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn symbolic_links_and_special_files_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    write_rehearsal(&outside.path().join("secret"), 1);
    let root = tempfile::tempdir().unwrap();
    write_rehearsal(&root.path().join("mine"), 1);
    symlink(outside.path().join("secret"), root.path().join("linked")).unwrap();
    symlink("/etc/passwd", root.path().join("mine/report.txt")).unwrap();
    let pipe = root.path().join("mine/report.md");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    fs::create_dir(root.path().join("mine/report.xml")).unwrap();
    let archive = RehearsalArchive::open(root.path().to_owned()).unwrap();
    assert_eq!(folders(&archive), ["mine"]);
    let index = archive.index(link).unwrap();
    let names: Vec<_> = index.rows[0].downloads.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["JSON"]);
    for name in ["report.txt", "report.md", "report.xml"] {
        let file = ReportFile::from_name(name).unwrap();
        assert!(archive.read(Path::new("mine"), file).is_err(), "{name}");
    }
    for path in ["linked", "..", "../mine", "mine/..", "mine/../mine", "/etc", "", "nothing"] {
        assert!(archive.read(Path::new(path), HTML_REPORT).is_err(), "{path}");
    }
    assert_eq!(archive.read(Path::new("mine"), HTML_REPORT).unwrap(), b"<p>report</p>");
}

#[test]
fn depth_and_size_are_limited() {
    let root = tempfile::tempdir().unwrap();
    let deep: PathBuf = (0..=DEPTH_MAX).map(|level| level.to_string()).collect();
    write_rehearsal(&root.path().join(&deep), 1);
    write_rehearsal(&root.path().join("large"), 1);
    fs::File::create(root.path().join("large/report.html")).unwrap().set_len(FILE_MAX + 1).unwrap();
    fs::File::create(root.path().join("large/report.json")).unwrap().set_len(FILE_MAX + 1).unwrap();
    let archive = RehearsalArchive::open(root.path().to_owned()).unwrap();
    let index = archive.index(link).unwrap();
    assert_eq!(index.rows.len(), 1, "{:?}", index.rows);
    assert_eq!(index.rows[0].summary, "report.json: larger than 64 MiB");
    assert_eq!(index.notes.len(), 1, "{:?}", index.notes);
    assert!(archive.read(&deep, HTML_REPORT).is_err());
    assert!(archive.read(Path::new("large"), HTML_REPORT).is_err());
}

#[test]
fn only_listed_names_are_files_of_reports() {
    for name in ["rehearsal.json", "reset.log", "report.html/", "../report.html", "", "REPORT.HTML"]
    {
        assert_eq!(ReportFile::from_name(name), None, "{name}");
    }
}
