//! Applies configuration files to a small command tree.

use std::path::Path;

use clap::{Arg, ArgAction, Command, value_parser};

use super::*;

fn tree() -> Command {
    let rate = Arg::new("rate").long("rate").value_parser(value_parser!(f64)).default_value("1");
    let map = Arg::new("map").long("map-user").action(ArgAction::Append);
    let fast = Arg::new("fast").long("fast").action(ArgAction::SetTrue);
    let target = Arg::new("target").long("target").required(true);
    let format = Arg::new("format").long("format").value_parser(["table", "json"]);
    let play = Command::new("play").args([rate, map, fast, target, format]);
    let port = Arg::new("port").long("port").value_parser(value_parser!(u16));
    let lab = Command::new("lab").subcommand(Command::new("start").arg(port));
    let level = Arg::new("level").long("level").global(true).value_parser(["warn", "info"]);
    Command::new("t").arg(level).subcommands([play, lab])
}

fn file(text: &str) -> ConfigFile {
    ConfigFile {
        path: Path::new("h.toml").to_owned(),
        text: text.to_owned(),
        source: ConfigSource::Named,
    }
}

fn problems(text: &str) -> Vec<String> {
    file(text)
        .apply(tree())
        .expect_err("the file is invalid")
        .0
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn file_values_are_defaults_that_arguments_override() {
    let text = "level = 'info'\n[play]\nrate = 2\nmap-user = ['a=b', 'c=d']\nfast = true\n\
                target = 'x'\n[lab.start]\nport = 0x1538\n";
    let command = file(text).apply(tree()).unwrap();
    let matches = command.clone().try_get_matches_from(["t", "play"]).unwrap();
    let play = matches.subcommand_matches("play").unwrap();
    assert_eq!(play.get_one::<f64>("rate"), Some(&2.0));
    assert_eq!(play.get_one::<String>("target").unwrap(), "x");
    assert_eq!(play.get_one::<String>("level").unwrap(), "info");
    assert!(play.get_flag("fast"));
    let users: Vec<_> = play.get_many::<String>("map").unwrap().collect();
    assert_eq!(users, ["a=b", "c=d"]);

    let words = ["t", "play", "--rate=3", "--map-user=e=f", "--level=warn"];
    let matches = command.clone().try_get_matches_from(words).unwrap();
    let play = matches.subcommand_matches("play").unwrap();
    assert_eq!(play.get_one::<f64>("rate"), Some(&3.0));
    assert_eq!(play.get_one::<String>("level").unwrap(), "warn");
    let users: Vec<_> = play.get_many::<String>("map").unwrap().collect();
    assert_eq!(users, ["e=f"]);

    let matches = command.try_get_matches_from(["t", "lab", "start"]).unwrap();
    let (_, lab) = matches.subcommand().unwrap();
    let (_, start) = lab.subcommand().unwrap();
    assert_eq!(start.get_one::<u16>("port"), Some(&5432));
}

#[test]
fn mistyped_key_is_reported_with_line_and_nearest_key() {
    assert_eq!(
        problems("level = 'info'\n\n[play]\n# pace\nraet = 2\n"),
        ["h.toml:5: play.raet: unknown key (did you mean `rate`?)"]
    );
    assert_eq!(
        problems("[plya]\nrate = 2"),
        ["h.toml:1: plya: unknown section (did you mean `play`?)"]
    );
    assert_eq!(
        problems("[lab.start]\nzzzzzzzz = 2"),
        ["h.toml:2: lab.start.zzzzzzzz: unknown key (known: port)"]
    );
}

#[test]
fn values_are_checked_by_the_options_parser() {
    assert_eq!(
        problems(
            "level = 'loud'\n[play]\nrate = 'fast'\nformat = 'xml'\nfast = 1\nmap-user = [[1]]\n\
             target = ['a', 'b']\n[lab.start]\nport = 70000\n"
        ),
        [
            "h.toml:1: level: `loud` is not one of warn, info",
            "h.toml:3: play.rate: `fast`: invalid float literal",
            "h.toml:4: play.format: `xml` is not one of table, json",
            "h.toml:5: play.fast: must be true or false",
            "h.toml:6: play.map-user: must be a scalar value, not array",
            "h.toml:7: play.target: takes one value, not a list",
            "h.toml:9: lab.start.port: `70000`: 70000 is not in 0..=65535",
        ]
    );
}

#[test]
fn section_and_value_are_not_interchangeable() {
    assert_eq!(
        problems("play = 1\n[level]\nx = 1\n"),
        [
            "h.toml:1: play: is a section: write [play] with its options below",
            "h.toml:2: level: takes a value, not a section",
        ]
    );
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let lines = problems("[play]\nrate = = 2\n");
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("h.toml:2: "), "{lines:?}");
    assert!(problems("[play]\nrate = 1\nrate = 2\n")[0].starts_with("h.toml:3: "));
}

#[test]
fn values_are_counted() {
    assert_eq!(file("a = 1\n[b]\nc = 1\n[b.d]\ne = [1, 2]\n").len(), 3);
}

#[test]
fn metrics_section_sets_the_option_of_every_command() {
    let statsd = || Arg::new("metrics_statsd").long("metrics-statsd");
    let tree = || {
        let lab = Command::new("lab").subcommand(Command::new("start").arg(statsd()));
        Command::new("t").subcommands([Command::new("play").arg(statsd()), lab])
    };
    let command = file("[metrics.statsd]\naddress = 'h:8125'\n").apply(tree()).unwrap();
    for words in [&["t", "play"][..], &["t", "lab", "start"]] {
        let mut matches = command.clone().try_get_matches_from(words).unwrap();
        while let Some((_, sub)) = matches.remove_subcommand() {
            matches = sub;
        }
        assert_eq!(matches.get_one::<String>("metrics_statsd").unwrap(), "h:8125");
    }
    let wrong = "[metrics.statsd]\nadress = 'h:8125'\n[metrics.graphite]\n";
    let problems: Vec<String> =
        file(wrong).apply(tree()).expect_err("wrong").0.iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("2: metrics.statsd.adress: unknown key"), "{problems:?}");
    assert!(problems.iter().any(|line| line.contains("metrics.graphite: unknown section")));
}
