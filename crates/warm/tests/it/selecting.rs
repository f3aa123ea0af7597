//! Loads parts of images, into other schemas, and forecasts.

use howdah_lab::Cluster;
use howdah_warm::{
    image::{DatabasePattern, RelationPattern, SelectedImage, Selection},
    load::{self, LoadOptions, RateBasis},
};

use crate::support::{SCHEMA, cached, check_sums, image, load, outcome, session, start, target};

const TABLE: &str = "\"Odd.Schema\".\"ta,ble\"";

#[test]
fn only_selected_relations_are_loaded_and_others_do_not_count() {
    for major in [15, 18] {
        let test = format!("selection on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        client.query(SCHEMA).unwrap();
        client.query("CREATE EXTENSION pg_prewarm").unwrap();
        client
            .query(&format!("SELECT count(*) FROM {TABLE}; SELECT count(body) FROM long"))
            .unwrap();
        let image = image(&here);
        drop(client);
        cluster.restart().unwrap();
        let here = target(&cluster, "postgres");
        let selection = Selection {
            databases: vec![DatabasePattern::new("post*")],
            relations: vec![RelationPattern::new("long")],
            ..Selection::default()
        };
        let SelectedImage { image: selected, not_selected } = selection.select(&image).unwrap();
        assert_eq!(selected.page_count() + not_selected, image.page_count());
        let loaded = load(&selected, &here, &LoadOptions::default());
        check_sums(&loaded);
        assert_eq!(loaded.share(), 1.0, "{major}: {:#?}", loaded.outcomes);
        assert!(outcome(&loaded, "public.long (TOAST)").pages.loaded > 50);
        let mut client = session(&here);
        assert!(cached(&mut client, TABLE).is_empty(), "{major}");
        assert!(!cached(&mut client, "long").is_empty(), "{major}");
    }
}

#[test]
fn mapped_schema_is_loaded_even_on_the_same_cluster() {
    let Some(mut cluster) = start("map schema", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client
        .query(&format!(
            "CREATE EXTENSION pg_prewarm; CREATE SCHEMA copy;
             CREATE TABLE copy.\"ta,ble\" AS SELECT * FROM {TABLE}; CHECKPOINT;
             SELECT count(*) FROM {TABLE}"
        ))
        .unwrap();
    let image = image(&here);
    drop(client);
    cluster.restart().unwrap();
    let here = target(&cluster, "postgres");
    let selection = Selection {
        relations: vec![RelationPattern::new("\"Odd.Schema\".*")],
        ..Selection::default()
    };
    let selected = selection.select(&image).unwrap().image;
    let options = LoadOptions {
        schema_names: [("Odd.Schema".to_owned(), "copy".to_owned())].into(),
        ..LoadOptions::default()
    };
    let loaded = load(&selected, &here, &options);
    check_sums(&loaded);
    let mut client = session(&here);
    assert!(cached(&mut client, TABLE).is_empty());
    assert!(cached(&mut client, "copy.\"ta,ble\"").len() > 300);
    // The copy has no index.
    let index = outcome(&loaded, "Odd.Schema.ta,ble_pkey");
    assert_eq!(index.pages.not_found, index.pages.in_image);
}

#[test]
fn forecast_loads_nothing_and_predicts_the_load() {
    let how = Cluster::builder().setting("shared_buffers", "16MB");
    let Some(mut cluster) = start("forecast", how) else { return };
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm").unwrap();
    client.query(&format!("SELECT count(*) FROM {TABLE}; SELECT count(body) FROM long")).unwrap();
    let image = image(&here);
    client.query("DROP TABLE long").unwrap();
    drop(client);
    cluster.restart().unwrap();
    let here = target(&cluster, "postgres");
    let forecast = load::forecast(&image, &here, &LoadOptions::default(), &()).unwrap();
    let pages = forecast.pages();
    assert!(pages.to_load() > 300 && pages.not_found > 50, "{pages:?}");
    assert!(matches!(forecast.estimate.basis, RateBasis::Sample { bytes: 1.., .. }));
    assert!(forecast.estimate.shortest <= forecast.estimate.longest);
    assert!(forecast.scan_error.is_none());
    let mut client = session(&here);
    assert!(cached(&mut client, TABLE).is_empty(), "nothing was loaded");

    // Catalogs are loaded by the sessions meanwhile.
    let table = |outcomes: &[load::RelationOutcome]| {
        let is_it = |outcome: &&load::RelationOutcome| match &outcome.relation {
            howdah_warm::diff::RelationIdentity::Named(name) => {
                name.to_string() == "Odd.Schema.ta,ble"
            }
            howdah_warm::diff::RelationIdentity::File(_) => false,
        };
        outcomes.iter().find(is_it).unwrap().pages
    };
    let loaded = load(&image, &here, &LoadOptions::default());
    assert_eq!(table(&forecast.outcomes).to_load(), table(&loaded.outcomes).loaded);
    let again = load::forecast(&image, &here, &LoadOptions::default(), &()).unwrap();
    assert_eq!(table(&again.outcomes).to_load(), 0);

    // Without room and without the extension.
    client
        .query(
            "DROP EXTENSION pg_prewarm; CREATE TABLE big AS
             SELECT repeat('x', 2000) FROM generate_series(1, 20000); SELECT count(*) FROM big",
        )
        .unwrap();
    let fresh = LoadOptions::default();
    let full = load::forecast(&image, &here, &fresh, &()).unwrap();
    let evicting =
        load::forecast(&image, &here, &LoadOptions { evict: true, ..fresh }, &()).unwrap();
    assert!(full.pages().no_room >= evicting.pages().no_room);
    assert!(!matches!(evicting.estimate.basis, RateBasis::Sample { .. }));
}
