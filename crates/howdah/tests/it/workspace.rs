//! The shape of the workspace: which crate may know which, and what we let in from outside.

mod licence;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// What `cargo metadata` says, as far as it matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    source: Option<String>,
    license: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// `deny.toml`, as far as the tests enforce it.
#[derive(Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    wildcards: String,
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn policy() -> Policy {
    toml::from_str(&fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap()
}

/// The dependency graph with every feature, on the systems where Howdah runs.
fn metadata() -> Metadata {
    let targets = policy().graph.targets;
    let platforms = targets.iter().flat_map(|target| ["--filter-platform", target]);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--all-features"])
        .args(platforms)
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

    fn package(&self, id: &str) -> &Package {
        self.packages.iter().find(|package| package.id == id).expect("the graph is closed")
    }

    /// What is compiled on our systems; `packages` holds what only others need, too.
    fn used(&self) -> impl Iterator<Item = &Package> {
        self.resolve.nodes.iter().map(|node| self.package(&node.id))
    }
}

/// The layers of docs/ARCHITECTURE.md, top first, as crate folders.
fn layers() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let block = page.split("```layers\n").nth(1).expect("the page has a block of layers");
    let block = block.split("```").next().unwrap_or_default();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    block.lines().map(words).collect()
}

fn folder(package: &str) -> &str {
    package.strip_prefix("howdah-").unwrap_or(package)
}

#[test]
fn arrows_point_one_way() {
    let layers = layers();
    let mut depth = BTreeMap::new();
    for (at, layer) in layers.iter().enumerate() {
        for name in layer {
            assert!(depth.insert(name.as_str(), at).is_none(), "{name} is in two layers");
        }
    }
    let metadata = metadata();
    let members: BTreeSet<_> = metadata.members().map(|package| folder(&package.name)).collect();
    assert_eq!(depth.keys().copied().collect::<BTreeSet<_>>(), members, "crates of the map");
    for package in metadata.members() {
        let own = depth[folder(&package.name)];
        // Tests may reach across: they use the lab to have a server.
        let built = package.dependencies.iter().filter(|dep| dep.kind.as_deref() != Some("dev"));
        for dependency in built.filter(|dependency| dependency.path.is_some()) {
            let (from, to) = (&package.name, &dependency.name);
            assert!(depth[folder(to)] > own, "{from} must not know {to}: see docs/ARCHITECTURE.md");
        }
    }
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for package in metadata().members() {
        let manifest = fs::read_to_string(&package.manifest_path).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints, Some(&toml::Value::Boolean(true)), "{}", package.name);
        assert_eq!(package.license.as_deref(), Some("Apache-2.0"), "{}", package.name);
    }
}

#[test]
fn licences_are_those_we_allow() {
    let allowed = policy().licenses.allow;
    let metadata = metadata();
    let refused: Vec<_> = metadata
        .used()
        .filter(|package| {
            let licence = package.license.as_deref().unwrap_or("none");
            !licence::is_allowed(licence, &allowed)
        })
        .map(|package| (&package.name, &package.license))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn banned_crates_stay_out() {
    let metadata = metadata();
    for ban in policy().bans.deny {
        assert!(!ban.reason.is_empty(), "{} is banned for a reason", ban.name);
        for node in &metadata.resolve.nodes {
            let user = &metadata.package(&node.id).name;
            let uses = node.dependencies.iter().any(|id| metadata.package(id).name == ban.name);
            let allowed = ban.wrappers.contains(user);
            assert!(!uses || allowed, "{user} uses {}, but: {}", ban.name, ban.reason);
        }
    }
}

#[test]
fn dependencies_have_versions_and_come_from_one_registry() {
    let policy = policy();
    assert_eq!(policy.bans.wildcards, "deny");
    assert_eq!([policy.sources.unknown_registry, policy.sources.unknown_git], ["deny", "deny"]);
    let metadata = metadata();
    for package in metadata.members() {
        for dependency in package.dependencies.iter().filter(|dep| dep.path.is_none()) {
            assert_ne!(dependency.req, "*", "{} of {}", dependency.name, package.name);
        }
    }
    let sources: BTreeSet<_> =
        metadata.used().filter_map(|package| package.source.as_deref()).collect();
    assert!(sources.len() <= 1, "{sources:?}");
    assert!(sources.iter().all(|source| source.starts_with("registry+")), "{sources:?}");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let mut folders = vec![root().join("docs"), root().join("bench")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|ext| ext == "md") => pages.push(path),
                false => {}
            }
        }
    }
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(file);
            assert!(target.exists(), "{} links to {link}", page.display());
        }
    }
}
