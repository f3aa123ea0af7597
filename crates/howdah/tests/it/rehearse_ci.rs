//! The script and the workflow of `docs/src/guide/rehearse-ci.md`, run as the page has them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output},
};

use crate::{
    rehearse::{Fixture, INDEX},
    text,
};

/// Stands for GitHub's command line on a pull request without comments.
const GH: &str = "#!/bin/sh
echo \"$@\" >> gh.log
case \"$*\" in *--edit-last*) exit 1 ;; esac
while [ $# -gt 1 ]; do shift; done
cp \"$1\" comment.md
";

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guide/rehearse-ci.md");
    fs::read_to_string(page).unwrap()
}

/// The first block of a language on the page.
fn block<'p>(page: &'p str, language: &str) -> &'p str {
    let start = format!("```{language}\n");
    page.split(&start).nth(1).unwrap().split("```").next().unwrap()
}

/// The scripts of the steps of a workflow, by the names of the steps.
fn steps(workflow: &str) -> Vec<(String, String)> {
    let mut steps = Vec::new();
    for step in workflow.split("      - name: ").skip(1) {
        let name = step.lines().next().unwrap().to_owned();
        if let Some((_, script)) = step.split_once("        run: |\n") {
            let lines = script.lines().map_while(|line| line.strip_prefix("          "));
            steps.push((name, lines.map(|line| format!("{line}\n")).collect()));
        }
    }
    steps
}

/// Runs a shell in the repository, with `howdah` and `gh` on its path.
fn shell(fixture: &Fixture, script: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(fixture.path("repository"))
        .env("PATH", format!("{}:{path}", fixture.path("bin").display()))
        .env("HOME", fixture.folder.path())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("BASE_URI", fixture.base.uri("shop"))
        .env("CAPTURE", fixture.path("capture"))
        .env("TARGET", "origin/main")
        .env("NUMBER", "17")
        .output()
        .unwrap()
}

/// Runs a script that must succeed, and returns its output.
fn run(fixture: &Fixture, script: &str) -> String {
    let output = shell(fixture, script);
    let all = all_output(&output);
    assert!(output.status.success(), "{script}: {all}");
    all
}

fn all_output(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn script_and_workflow_of_the_page_work() {
    let page = page();
    let steps = steps(block(&page, "yaml"));
    let names: Vec<_> = steps.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Rehearse", "Comment"]);
    let Some(fixture) = Fixture::new() else { return };
    fs::create_dir(fixture.path("bin")).unwrap();
    symlink(assert_cmd::cargo::cargo_bin!("howdah"), fixture.path("bin/howdah")).unwrap();
    fs::write(fixture.path("bin/gh"), GH).unwrap();
    fs::set_permissions(fixture.path("bin/gh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(fixture.path("repository/ci")).unwrap();
    fs::create_dir(fixture.path("repository/migrations")).unwrap();
    fs::write(fixture.path("repository/ci/rehearse"), block(&page, "sh")).unwrap();
    fs::write(fixture.path("repository/migrations/1.sql"), "create table never_run ();\n").unwrap();
    let commit = "git add . && git -c user.name=t -c user.email=t@localhost commit -q -m x";
    run(
        &fixture,
        &format!("git init -q . && {commit} && git update-ref refs/remotes/origin/main HEAD"),
    );

    let skipped = run(&fixture, &steps[0].1);
    assert!(skipped.contains("no migration: nothing to rehearse"), "{skipped}");

    let migration = format!("-- Two statements.\nset lock_timeout = '5s';\ndrop index {INDEX}");
    fs::write(fixture.path("repository/migrations/2.sql"), migration).unwrap();
    run(&fixture, commit);
    let output = shell(&fixture, &steps[0].1);
    let rehearsed = all_output(&output);
    // A busy machine may make the runs incomparable.
    let (message, verdict) = match output.status.code() {
        Some(3) => ("failed: a query is slower", "failed"),
        Some(4) => ("not comparable: the runs differ", "not comparable"),
        code => panic!("{code:?}: {rehearsed}"),
    };
    assert!(rehearsed.contains(message), "{rehearsed}");
    let markdown = rehearsed.replace('\\', "");
    assert!(markdown.contains(INDEX), "the Markdown is printed: {rehearsed}");
    for file in ["report.html", "report.json", "report.md"] {
        assert!(fixture.path("repository/rehearsal").join(file).exists(), "{file}");
    }
    let printed = fs::read(fixture.path("repository/rehearsal.out")).unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!(printed["verdict"], verdict);

    run(&fixture, &steps[1].1);
    let calls = fs::read_to_string(fixture.path("repository/gh.log")).unwrap();
    assert_eq!(calls.matches("pr comment 17").count(), 2, "{calls}");
    let comment = fs::read_to_string(fixture.path("repository/comment.md")).unwrap();
    assert!(comment.replace('\\', "").contains(INDEX), "{comment}");
}
