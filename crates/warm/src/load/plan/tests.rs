use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    image::{Origin, Page, QualifiedName, Relation, RelationName, Source},
    load::catalog::Kind,
};

const FILE: RelationFile = RelationFile { database: 5, tablespace: 1663, filenode: 16_384 };

fn cached(length: Option<u32>, pages: impl IntoIterator<Item = (u32, u8)>) -> CachedFork {
    let page = |(block, usage)| Page { block, usage, is_dirty: false };
    CachedFork { fork: Fork::Main, length, pages: pages.into_iter().map(page).collect() }
}

fn image(fork: CachedFork) -> CacheImage {
    CacheImage {
        origin: Origin {
            server_version: 150_018,
            system_identifier: 1,
            page_bytes: 8192,
            buffers: 100,
            taken_at_us: 0,
            source: Source::Memory,
        },
        databases: BTreeMap::from([(5, "shop".to_owned())]),
        relations: vec![Relation {
            file: FILE,
            name: Some(RelationName::Own(QualifiedName { schema: "a".into(), name: "b".into() })),
            is_logged: true,
            forks: vec![fork],
        }],
    }
}

fn found(length: u32) -> Found {
    Found {
        database: "shop".to_owned(),
        oid: 1,
        file: FILE,
        kind: Kind::Heap,
        lengths: [Some(length), None, None, None],
        name: QualifiedName { schema: "a".into(), name: "b".into() },
        renamed: None,
    }
}

struct Made {
    plan: Plan,
    outcome: Outcome,
}

fn made(fork: CachedFork, length: u32, is_rewritten: bool, room: u64) -> Made {
    let image = image(fork);
    let mut outcomes = [Outcome { is_rewritten, ..Outcome::of(&image, 0) }];
    let bounds = Bounds { room, piece: 100 };
    let plan = plan(&image, &[Ok(found(length))], None, bounds, &mut outcomes);
    let [outcome] = outcomes;
    Made { plan, outcome }
}

/// Class and runs of each piece.
fn shown(plan: &Plan) -> Vec<String> {
    let run = |run: &Run| format!("{}-{}", run.first, run.last);
    let runs = |piece: &Piece| piece.runs.iter().map(run).collect::<Vec<_>>().join(" ");
    plan.pieces.iter().map(|piece| format!("{}: {}", piece.class, runs(piece))).collect()
}

#[test]
fn the_hottest_come_first_and_each_class_in_the_order_of_the_disk() {
    let fork = cached(Some(50), [(0, 1), (1, 1), (10, 5), (20, 5), (21, 5), (30, 1)]);
    let Made { plan, outcome } = made(fork, 50, false, 100);
    assert_eq!(shown(&plan), ["5: 10-10 20-21", "1: 0-1 30-30"]);
    assert_eq!((outcome.pages.wanted, outcome.pages.no_room), (6, 0));
}

#[test]
fn what_lies_between_hot_pages_is_taken_along() {
    let pages = (0..40).map(|block| (block, if [0, 5, 11, 17].contains(&block) { 5 } else { 1 }));
    // 18 to 20 are not in the image, so they are not loaded.
    let fork = cached(Some(60), pages.filter(|(block, _)| !(18..21).contains(block)));
    assert_eq!(shown(&made(fork, 60, false, 100).plan), ["5: 0-5 11-11 17-17", "1: 6-16 21-39"]);
}

#[test]
fn a_run_goes_on_over_what_is_there_already() {
    let image =
        image(cached(Some(50), (0..50).map(|block| (block, if block == 20 { 5 } else { 1 }))));
    let mut outcomes = [Outcome::of(&image, 0)];
    let held = Occupancy::of([((FILE, Fork::Main), vec![3, 4, 30, 48])], 100);
    let bounds = Bounds { room: 100, piece: 30 };
    let plan = plan(&image, &[Ok(found(50))], Some(&held), bounds, &mut outcomes);
    assert_eq!(shown(&plan), ["5: 20-20", "1: 0-33", "1: 34-49"]);
    assert_eq!(plan.pieces.iter().map(Piece::pages).collect::<Vec<_>>(), [1, 30, 15]);
    assert_eq!((outcomes[0].pages.wanted, outcomes[0].pages.resident), (50, 4));
}

#[test]
fn heat_is_followed_as_far_as_its_runs_can_be_paid() {
    let classes = |usage: fn(u32) -> u8| {
        let fork = cached(None, (0..4000).map(|block| (block, usage(block))));
        let mut classes: Vec<_> =
            made(fork, 4000, false, 5000).plan.pieces.iter().map(|piece| piece.class).collect();
        classes.dedup();
        classes
    };
    let each_eighth = |block: u32| if block.is_multiple_of(8) { 5 } else { 1 };
    assert_eq!(classes(each_eighth), [2], "500 runs for as many pages are too dear");
    // The hottest can be paid, the next after them cannot.
    let both = |block| match block % 16 {
        0 => 5,
        8 => 3,
        _ => 1,
    };
    assert_eq!(classes(both), [5, 1]);
    // Where not all has room, heat decides what is left out.
    let fork = cached(None, (0..4000).map(|block| (block, each_eighth(block))));
    let hottest = made(fork, 4000, false, 500).plan.pieces;
    assert!(
        hottest
            .iter()
            .all(|piece| piece.class == 5 && piece.runs.iter().all(|it| it.first.is_multiple_of(8)))
    );
    // Where heat lies together, it costs nothing.
    assert_eq!(classes(|block| 5 - (block / 1000) as u8), [5, 4, 3, 2]);
}

#[test]
fn where_there_is_no_room_the_coolest_are_left_out() {
    let fork = cached(Some(50), (0..10).map(|block| (block * 4, 5 - (block / 2) as u8)));
    let Made { plan, outcome } = made(fork, 50, false, 5);
    assert_eq!(shown(&plan), ["5: 0-0 4-4", "4: 8-8 12-12", "3: 16-16"]);
    assert_eq!((outcome.pages.wanted, outcome.pages.no_room), (10, 5));
}

#[test]
fn pieces_have_a_bounded_size() {
    let Made { plan, .. } = made(cached(None, (0..250).map(|block| (block, 1))), 250, false, 1000);
    assert_eq!(shown(&plan), ["1: 0-99", "1: 100-199", "1: 200-249"]);
}

#[test]
fn what_is_beyond_the_end_is_counted_and_not_asked_for() {
    let Made { plan, outcome } = made(cached(Some(10), [(3, 1), (7, 1), (9, 1)]), 8, false, 100);
    assert_eq!(shown(&plan), ["1: 3-3 7-7"]);
    assert_eq!((outcome.pages.wanted, outcome.pages.beyond_end), (2, 1));
    assert!(matches!(outcome.problem, Some(Problem::Shrunk)));
    let Made { plan, outcome } = made(cached(Some(10), [(3, 1)]), 0, false, 100);
    assert!(plan.pieces.is_empty() && outcome.pages.beyond_end == 1);
}

#[test]
fn a_rewritten_relation_is_loaded_by_its_share() {
    let all = |length: u32| cached(Some(length), (0..length).map(|block| (block, 1)));
    assert_eq!(shown(&made(all(100), 60, true, 1000).plan), ["1: 0-59"]);
    assert_eq!(shown(&made(all(60), 90, true, 1000).plan), ["1: 0-89"]);
    let second_half = cached(Some(100), (50..100).map(|block| (block, 1)));
    assert_eq!(shown(&made(second_half, 40, true, 1000).plan), ["1: 20-39"]);
    assert!(shown(&made(all(10), 0, true, 1000).plan).is_empty());
    // The same file that has grown keeps its blocks.
    assert_eq!(shown(&made(all(10), 90, false, 1000).plan), ["1: 0-9"]);
}

proptest! {
    #[test]
    fn piece_is_parted_around_a_block_without_loss(
        starts in vec((1_u32..20, 1_u32..20), 1..20),
        held in vec(0_u32..20, 20),
        at in 0_usize..1000,
    ) {
        let mut next = 0;
        let mut runs = Vec::new();
        for ((gap, length), held) in starts.into_iter().zip(held) {
            let first = next + gap;
            let last = first + length;
            // The first and the last block of a run are to be loaded.
            runs.push(Run { first, last, held: held.min(length - 1) });
            next = last + 1;
        }
        let blocks: Vec<_> = runs.iter().flat_map(|run| run.first..=run.last).collect();
        let block = blocks[at % blocks.len()];
        let piece = Piece { relation: 0, fork: Fork::Main, class: 1, runs };
        let (before, after) = piece.part_around(block).unwrap();
        prop_assert_eq!(before.pages() + after.pages() + 1, piece.pages());
        let of = |piece: &Piece| piece.runs.iter().flat_map(|run| run.first..=run.last).collect::<Vec<_>>();
        prop_assert!(of(&before).iter().all(|it| *it < block) && of(&after).iter().all(|it| *it > block));
        prop_assert!(piece.part_around(next).is_none() && piece.part_around(0).is_none());
        let middle = piece.middle();
        prop_assert!(blocks.contains(&middle));
    }

    #[test]
    fn every_wanted_page_is_planned_once(
        pages in vec((0_u32..400, 0_u8..6), 0..300),
        old in 1_u32..500,
        now in 0_u32..500,
        is_rewritten: bool,
        room in 0_u64..500,
    ) {
        let Made { plan, outcome } = made(cached(Some(old), pages), now, is_rewritten, room);
        let (mut blocks, mut planned) = (BTreeSet::new(), 0);
        for piece in &plan.pieces {
            prop_assert!(piece.pages() <= 100 && !piece.runs.is_empty());
            prop_assert!(piece.runs.windows(2).all(|runs| runs[0].last < runs[1].first));
            planned += piece.pages();
            blocks.extend(piece.runs.iter().flat_map(|run| run.first..=run.last));
        }
        prop_assert!(blocks.iter().all(|&block| block < now));
        prop_assert!(planned <= room);
        // A run that was cut for lack of room counts what it holds as to be loaded.
        prop_assert!(blocks.len() as u64 == planned || outcome.pages.no_room > 0);
        prop_assert_eq!(planned + outcome.pages.no_room, outcome.pages.wanted);
        prop_assert!(plan.pieces.is_sorted_by_key(|piece| Reverse(piece.class)));
    }

    #[test]
    fn what_is_there_is_left_out(
        pages in vec(0_u32..100, 0..80),
        mut held in vec(0_u32..100, 0..80),
    ) {
        let sorted: BTreeSet<_> = pages.into_iter().collect();
        let mut wanted: Vec<_> = sorted.iter().map(|&block| Wanted { block, class: 1 }).collect();
        held.sort_unstable();
        let there = leave_out(&mut wanted, &held);
        let (held, expected): (Vec<_>, Vec<_>) =
            sorted.into_iter().partition(|block| held.contains(block));
        prop_assert_eq!(there, held);
        let left: Vec<_> = wanted.into_iter().map(|page| page.block).collect();
        prop_assert_eq!(left, expected);
    }
}
