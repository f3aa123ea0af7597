//! The workspace's structure: which crate may depend on which. External dependencies are checked by
//! cargo-deny.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// The parts of `cargo metadata` that the tests read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata() -> Metadata {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--no-deps"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Metadata {
    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// The layers in docs/ARCHITECTURE.md, top first, as names of crate folders.
fn layers() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let block =
        page.split("```layers\n").nth(1).expect("docs/ARCHITECTURE.md has no ```layers block");
    let block = block.split("```").next().unwrap_or_default();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    block.lines().map(words).collect()
}

fn folder(package: &str) -> &str {
    package.strip_prefix("howdah-").unwrap_or(package)
}

#[test]
fn crate_dependencies_follow_the_layers() {
    let layers = layers();
    let mut depth = BTreeMap::new();
    for (at, layer) in layers.iter().enumerate() {
        for name in layer {
            assert!(depth.insert(name.as_str(), at).is_none(), "{name} is in two layers");
        }
    }
    let metadata = metadata();
    let members: BTreeSet<_> = metadata.members().map(|package| folder(&package.name)).collect();
    assert_eq!(
        depth.keys().copied().collect::<BTreeSet<_>>(),
        members,
        "crates in docs/ARCHITECTURE.md"
    );
    for package in metadata.members() {
        let own = depth[folder(&package.name)];
        // Dev-dependencies are exempt: tests start servers through the lab.
        let built = package.dependencies.iter().filter(|dep| dep.kind.as_deref() != Some("dev"));
        for dependency in built.filter(|dependency| dependency.path.is_some()) {
            let (from, to) = (&package.name, &dependency.name);
            assert!(
                depth[folder(to)] > own,
                "{from} must not depend on {to}: see docs/ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn every_crate_uses_workspace_lints() {
    for package in metadata().members() {
        let manifest = fs::read_to_string(&package.manifest_path).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints, Some(&toml::Value::Boolean(true)), "{}", package.name);
        assert_eq!(package.license.as_deref(), Some("Apache-2.0"), "{}", package.name);
    }
}
