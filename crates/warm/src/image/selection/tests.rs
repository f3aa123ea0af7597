//! Tests with images of a few relations.

use std::collections::BTreeMap;

use super::*;
use crate::image::{
    CachedPage, Fork, ImageOrigin, ImageSource, QualifiedName, RelationFile, RelationName,
};

fn relation(database: u32, filenode: u32, name: Option<RelationName>) -> Relation {
    let page = |block| CachedPage { block, usage: block as u8, is_dirty: false };
    let fork = |fork, blocks| CachedFork {
        fork,
        length: Some(10),
        pages: (0..blocks).map(page).collect(),
    };
    Relation {
        file: RelationFile { database, tablespace: 1663, filenode },
        name,
        is_logged: true,
        forks: vec![fork(Fork::Main, 6), fork(Fork::VisibilityMap, 1)],
        keys: None,
    }
}

fn name(schema: &str, name: &str) -> QualifiedName {
    QualifiedName { schema: schema.into(), name: name.into() }
}

fn image() -> CacheImage {
    let own = |schema, table| Some(RelationName::Own(name(schema, table)));
    CacheImage {
        origin: ImageOrigin {
            server_version: 170_000,
            system_identifier: 1,
            page_bytes: 8192,
            buffers: 1000,
            taken_at_us: 0,
            source: ImageSource::Memory,
        },
        databases: BTreeMap::from([
            (5, "shop".to_owned()),
            (6, "shop.test".to_owned()),
            (7, "empty".to_owned()),
        ]),
        relations: vec![
            relation(0, 1, own("pg_catalog", "pg_database")),
            relation(5, 2, own("public", "orders")),
            relation(5, 3, own("public", "orders_pkey")),
            relation(5, 4, Some(RelationName::Toast(name("public", "orders")))),
            relation(5, 5, Some(RelationName::ToastIndex(name("public", "orders")))),
            relation(5, 6, own("sales", "Odd \"Name\"")),
            relation(5, 7, own("pg_catalog", "pg_class")),
            relation(6, 8, own("public", "orders")),
            relation(6, 9, None),
        ],
    }
}

/// The file numbers of selected relations, or the error.
fn selected(databases: &[&str], relations: &[&str], excluded: &[&str]) -> Result<Vec<u32>, String> {
    let patterns = |list: &[&str]| list.iter().map(|it| RelationPattern::new(it)).collect();
    let selection = Selection {
        databases: databases.iter().map(|it| DatabasePattern::new(it)).collect(),
        relations: patterns(relations),
        excluded: patterns(excluded),
        min_usage: 0,
    };
    let selected = selection.select(&image()).map_err(|error| error.to_string())?;
    assert_eq!(selected.not_selected + selected.image.page_count(), image().page_count());
    Ok(selected.image.relations.iter().map(|relation| relation.file.filenode).collect())
}

#[test]
fn default_selects_everything() {
    let SelectedImage { image: all, not_selected } = Selection::default().select(&image()).unwrap();
    assert!(all == image() && not_selected == 0);
    assert!(Selection::default().is_everything());
}

#[test]
fn toast_belongs_to_its_table_and_indexes_have_their_own_name() {
    assert_eq!(selected(&[], &["orders"], &[]), Ok(vec![2, 4, 5, 8]));
    assert_eq!(selected(&[], &["ORDERS*"], &[]), Ok(vec![2, 3, 4, 5, 8]));
    assert_eq!(selected(&[], &["orders_????"], &[]), Ok(vec![3]));
    assert_eq!(selected(&["shop"], &["orders*"], &["orders_pkey"]), Ok(vec![2, 4, 5]));
}

#[test]
fn system_catalogs_and_shared_ones_need_to_be_named() {
    assert_eq!(selected(&[], &["*"], &[]), Ok(vec![2, 3, 4, 5, 6, 8]));
    assert_eq!(selected(&[], &["pg_catalog.*"], &[]), Ok(vec![1, 7]));
    assert_eq!(selected(&[], &["*.*"], &[]), Ok(vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(selected(&["shop"], &["*.*"], &[]), Ok(vec![2, 3, 4, 5, 6, 7]));
    assert_eq!(selected(&[], &[], &["*"]), Ok(vec![1, 7, 9]), "nameless ones are not excluded");
}

#[test]
fn quotes_preserve_case_and_dots_separate_schemas_only() {
    assert_eq!(selected(&[], &["sales.\"Odd \"\"Name\"\"\""], &[]), Ok(vec![6]));
    assert_eq!(selected(&[], &["\"sales\".\"Odd\"*"], &[]), Ok(vec![6]));
    assert!(selected(&[], &["sales.odd*"], &[]).is_err());
    assert_eq!(selected(&["shop.test"], &[], &[]), Ok(vec![8, 9]));
    assert_eq!(selected(&["s*p*t"], &[], &[]), Ok(vec![8, 9]));
}

#[test]
fn pattern_without_match_lists_near_names() {
    let near = |selection: Selection| selection.select(&image()).unwrap_err();
    let relations = vec![RelationPattern::new("sales.oders")];
    let error = near(Selection { relations, ..Selection::default() });
    assert_eq!(error.to_string(), "no relation in the image matches sales.oders");
    assert_eq!(error.near_names[..2], ["public.orders", "public.orders_pkey"]);
    let excluded = vec![RelationPattern::new("x")];
    let error = near(Selection { excluded, ..Selection::default() });
    assert_eq!(error.near_names.len(), 3, "without system catalogs: {error:?}");
    let databases = vec![DatabasePattern::new("empty")];
    let error = near(Selection { databases, ..Selection::default() });
    assert_eq!((error.kind, error.near_names.len()), ("database", 2));
    let nameless = CacheImage { databases: BTreeMap::new(), ..image() };
    let databases = vec![DatabasePattern::new("shop")];
    let selection = Selection { databases, ..Selection::default() };
    assert!(selection.select(&nameless).unwrap_err().is_nameless);
}

#[test]
fn minimum_usage_drops_pages_forks_and_relations() {
    let selection = Selection { min_usage: 4, ..Selection::default() };
    let SelectedImage { image: hot, not_selected } = selection.select(&image()).unwrap();
    assert_eq!((hot.page_count(), not_selected), (9 * 2, 9 * 5));
    assert!(hot.relations.iter().all(|relation| relation.forks.len() == 1));
    let selection = Selection { min_usage: 6, ..Selection::default() };
    assert!(selection.select(&image()).unwrap().image.relations.is_empty());
}

#[test]
fn distance_counts_edits() {
    assert_eq!(edit_distance("orders", "orders"), 0);
    assert_eq!(edit_distance("oders", "orders"), 1);
    assert_eq!(edit_distance("", "abc"), 3);
    assert_eq!(edit_distance("kitten", "sitting"), 3);
}

#[test]
fn many_wildcards_match_in_bounded_time() {
    let pattern = RelationPattern::new(&format!("{}b", "a*".repeat(200)));
    let long = relation(5, 1, Some(RelationName::Own(name("public", &"a".repeat(5000)))));
    assert!(!pattern.matches(&long));
}
