use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    image::{CachedPage, ImageOrigin, ImageSource, QualifiedName, Relation, RelationName},
    load::catalog::RelationKind,
};

const FILE: RelationFile = RelationFile { database: 5, tablespace: 1663, filenode: 16_384 };

fn cached(length: Option<u32>, pages: impl IntoIterator<Item = (u32, u8)>) -> CachedFork {
    let page = |(block, usage)| CachedPage { block, usage, is_dirty: false };
    CachedFork { fork: Fork::Main, length, pages: pages.into_iter().map(page).collect() }
}

fn image(fork: CachedFork) -> CacheImage {
    CacheImage {
        origin: ImageOrigin {
            server_version: 150_018,
            system_identifier: 1,
            page_bytes: 8192,
            buffers: 100,
            taken_at_us: 0,
            source: ImageSource::Memory,
        },
        databases: BTreeMap::from([(5, "shop".to_owned())]),
        relations: vec![Relation {
            file: FILE,
            name: Some(RelationName::Own(QualifiedName { schema: "a".into(), name: "b".into() })),
            is_logged: true,
            forks: vec![fork],
            keys: None,
        }],
    }
}

fn found(length: u32) -> LocatedRelation {
    LocatedRelation {
        database: "shop".to_owned(),
        oid: 1,
        file: FILE,
        kind: RelationKind::Heap,
        lengths: [Some(length), None, None, None],
        name: QualifiedName { schema: "a".into(), name: "b".into() },
        renamed: None,
        mapping: None,
    }
}

struct PlanResult {
    plan: LoadPlan,
    outcome: RelationOutcome,
}

fn make_plan(fork: CachedFork, length: u32, is_rewritten: bool, room: u64) -> PlanResult {
    let image = image(fork);
    let mut outcomes =
        [RelationOutcome { is_rewritten, ..RelationOutcome::for_relation(&image, 0) }];
    let bounds = PlanLimits { room, chunk: 100 };
    let plan = plan(&image, &[Ok(found(length))], None, bounds, &mut outcomes);
    let [outcome] = outcomes;
    PlanResult { plan, outcome }
}

/// Class and runs of each chunk.
fn chunk_runs(plan: &LoadPlan) -> Vec<String> {
    let run = |run: &BlockRun| format!("{}-{}", run.first, run.last);
    let runs = |chunk: &LoadChunk| chunk.runs.iter().map(run).collect::<Vec<_>>().join(" ");
    plan.chunks.iter().map(|chunk| format!("{}: {}", chunk.class, runs(chunk))).collect()
}

#[test]
fn hottest_class_comes_first_in_disk_order() {
    let fork = cached(Some(50), [(0, 1), (1, 1), (10, 5), (20, 5), (21, 5), (30, 1)]);
    let PlanResult { plan, outcome } = make_plan(fork, 50, false, 100);
    assert_eq!(chunk_runs(&plan), ["5: 10-10 20-21", "1: 0-1 30-30"]);
    assert_eq!((outcome.pages.requested, outcome.pages.no_room), (6, 0));
}

#[test]
fn pages_between_hot_pages_are_absorbed() {
    let pages = (0..40).map(|block| (block, if [0, 5, 11, 17].contains(&block) { 5 } else { 1 }));
    // 18 to 20 are not in the image, so they are not loaded.
    let fork = cached(Some(60), pages.filter(|(block, _)| !(18..21).contains(block)));
    assert_eq!(
        chunk_runs(&make_plan(fork, 60, false, 100).plan),
        ["5: 0-5 11-11 17-17", "1: 6-16 21-39"]
    );
}

#[test]
fn run_continues_over_resident_pages() {
    let image =
        image(cached(Some(50), (0..50).map(|block| (block, if block == 20 { 5 } else { 1 }))));
    let mut outcomes = [RelationOutcome::for_relation(&image, 0)];
    let held = Occupancy::from_blocks([((FILE, Fork::Main), vec![3, 4, 30, 48])], 100);
    let bounds = PlanLimits { room: 100, chunk: 30 };
    let plan = plan(&image, &[Ok(found(50))], Some(&held), bounds, &mut outcomes);
    assert_eq!(chunk_runs(&plan), ["5: 20-20", "1: 0-33", "1: 34-49"]);
    assert_eq!(plan.chunks.iter().map(LoadChunk::pages).collect::<Vec<_>>(), [1, 30, 15]);
    assert_eq!((outcomes[0].pages.requested, outcomes[0].pages.resident), (50, 4));
}

#[test]
fn classes_are_separate_while_their_runs_are_affordable() {
    let classes = |usage: fn(u32) -> u8| {
        let fork = cached(None, (0..4000).map(|block| (block, usage(block))));
        let mut classes: Vec<_> = make_plan(fork, 4000, false, 5000)
            .plan
            .chunks
            .iter()
            .map(|chunk| chunk.class)
            .collect();
        classes.dedup();
        classes
    };
    let each_eighth = |block: u32| if block.is_multiple_of(8) { 5 } else { 1 };
    assert_eq!(classes(each_eighth), [2], "500 runs for as many pages are too expensive");
    // The hottest class is affordable, the next one is not.
    let both = |block| match block % 16 {
        0 => 5,
        8 => 3,
        _ => 1,
    };
    assert_eq!(classes(both), [5, 1]);
    // Without room for all, usage decides what is omitted.
    let fork = cached(None, (0..4000).map(|block| (block, each_eighth(block))));
    let hottest = make_plan(fork, 4000, false, 500).plan.chunks;
    assert!(
        hottest
            .iter()
            .all(|chunk| chunk.class == 5 && chunk.runs.iter().all(|it| it.first.is_multiple_of(8)))
    );
    // Contiguous classes cost nothing.
    assert_eq!(classes(|block| 5 - (block / 1000) as u8), [5, 4, 3, 2]);
}

#[test]
fn coolest_pages_are_omitted_without_room() {
    let fork = cached(Some(50), (0..10).map(|block| (block * 4, 5 - (block / 2) as u8)));
    let PlanResult { plan, outcome } = make_plan(fork, 50, false, 5);
    assert_eq!(chunk_runs(&plan), ["5: 0-0 4-4", "4: 8-8 12-12", "3: 16-16"]);
    assert_eq!((outcome.pages.requested, outcome.pages.no_room), (10, 5));
}

#[test]
fn chunks_have_a_bounded_size() {
    let PlanResult { plan, .. } =
        make_plan(cached(None, (0..250).map(|block| (block, 1))), 250, false, 1000);
    assert_eq!(chunk_runs(&plan), ["1: 0-99", "1: 100-199", "1: 200-249"]);
}

#[test]
fn blocks_past_relation_length_are_counted_not_requested() {
    let PlanResult { plan, outcome } =
        make_plan(cached(Some(10), [(3, 1), (7, 1), (9, 1)]), 8, false, 100);
    assert_eq!(chunk_runs(&plan), ["1: 3-3 7-7"]);
    assert_eq!((outcome.pages.requested, outcome.pages.beyond_end), (2, 1));
    assert!(matches!(outcome.problem, Some(RelationProblem::Shrunk)));
    let PlanResult { plan, outcome } = make_plan(cached(Some(10), [(3, 1)]), 0, false, 100);
    assert!(plan.chunks.is_empty() && outcome.pages.beyond_end == 1);
}

#[test]
fn rewritten_relation_is_scaled_to_its_length() {
    let all = |length: u32| cached(Some(length), (0..length).map(|block| (block, 1)));
    assert_eq!(chunk_runs(&make_plan(all(100), 60, true, 1000).plan), ["1: 0-59"]);
    assert_eq!(chunk_runs(&make_plan(all(60), 180, true, 1000).plan), ["1: 0-99", "1: 100-179"]);
    assert_eq!(chunk_runs(&make_plan(all(60), 90, true, 1000).plan), ["1: 0-59"], "an empty tail");
    let second_half = cached(Some(100), (50..100).map(|block| (block, 1)));
    assert_eq!(chunk_runs(&make_plan(second_half, 40, true, 1000).plan), ["1: 20-39"]);
    assert!(chunk_runs(&make_plan(all(10), 0, true, 1000).plan).is_empty());
    // The blocks of a file that has only grown keep their numbers.
    assert_eq!(chunk_runs(&make_plan(all(10), 90, false, 1000).plan), ["1: 0-9"]);
}

proptest! {
    #[test]
    fn splitting_a_chunk_loses_only_the_block(
        starts in vec((1_u32..20, 1_u32..20), 1..20),
        held in vec(0_u32..20, 20),
        at in 0_usize..1000,
    ) {
        let mut next = 0;
        let mut runs = Vec::new();
        for ((gap, length), held) in starts.into_iter().zip(held) {
            let first = next + gap;
            let last = first + length;
            // The first and the last block of a run are not resident.
            runs.push(BlockRun { first, last, resident: held.min(length - 1) });
            next = last + 1;
        }
        let blocks: Vec<_> = runs.iter().flat_map(|run| run.first..=run.last).collect();
        let block = blocks[at % blocks.len()];
        let chunk = LoadChunk { relation: 0, fork: Fork::Main, class: 1, runs };
        let (before, after) = chunk.split_around(block).unwrap();
        prop_assert_eq!(before.pages() + after.pages() + 1, chunk.pages());
        let of = |chunk: &LoadChunk| chunk.runs.iter().flat_map(|run| run.first..=run.last).collect::<Vec<_>>();
        prop_assert!(of(&before).iter().all(|it| *it < block) && of(&after).iter().all(|it| *it > block));
        prop_assert!(chunk.split_around(next).is_none() && chunk.split_around(0).is_none());
        let middle = chunk.middle();
        prop_assert!(blocks.contains(&middle));
    }

    #[test]
    fn every_requested_page_is_planned_once(
        pages in vec((0_u32..400, 0_u8..6), 0..300),
        old in 1_u32..500,
        now in 0_u32..500,
        is_rewritten: bool,
        room in 0_u64..500,
    ) {
        let PlanResult { plan, outcome } = make_plan(cached(Some(old), pages), now, is_rewritten, room);
        let (mut blocks, mut planned) = (BTreeSet::new(), 0);
        for chunk in &plan.chunks {
            prop_assert!(chunk.pages() <= 100 && !chunk.runs.is_empty());
            prop_assert!(chunk.runs.windows(2).all(|runs| runs[0].last < runs[1].first));
            planned += chunk.pages();
            blocks.extend(chunk.runs.iter().flat_map(|run| run.first..=run.last));
        }
        prop_assert!(blocks.iter().all(|&block| block < now));
        prop_assert!(planned <= room);
        // A run truncated for lack of room counts its resident pages as pages to load.
        prop_assert!(blocks.len() as u64 == planned || outcome.pages.no_room > 0);
        prop_assert_eq!(planned + outcome.pages.no_room, outcome.pages.requested);
        prop_assert!(plan.chunks.is_sorted_by_key(|chunk| Reverse(chunk.class)));
    }

    #[test]
    fn resident_pages_are_removed(
        pages in vec(0_u32..100, 0..80),
        mut held in vec(0_u32..100, 0..80),
    ) {
        let sorted: BTreeSet<_> = pages.into_iter().collect();
        let mut requested: Vec<_> = sorted.iter().map(|&block| PlannedPage { block, class: 1 }).collect();
        held.sort_unstable();
        let there = remove_resident(&mut requested, &held);
        let (held, expected): (Vec<_>, Vec<_>) =
            sorted.into_iter().partition(|block| held.contains(block));
        prop_assert_eq!(there, held);
        let left: Vec<_> = requested.into_iter().map(|page| page.block).collect();
        prop_assert_eq!(left, expected);
    }
}
