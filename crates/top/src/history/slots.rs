//! Rows of numbers as what changed in them since the row before.

use super::bytes::{Damage, In, Out};

/// A number, or that there is none.
pub(super) type Slot = Option<i64>;

/// Writes `now` as its difference to `before`: which slots differ, which of those have no value, then the
/// values. A slot of `clock` is written as how long before `clock_us` it was, for a moment that is new has
/// nothing to do with the one before it.
pub(super) fn put(out: &mut Out, now: &[Slot], before: &[Slot], clock: u64, clock_us: i64) {
    let mut changed = 0_u64;
    let mut none = 0_u64;
    for (at, (now, before)) in now.iter().zip(before).enumerate() {
        changed |= u64::from(now != before) << at;
        none |= u64::from(now != before && now.is_none()) << at;
    }
    out.number(changed);
    if changed == 0 {
        return;
    }
    out.number(none);
    for (at, (now, before)) in now.iter().zip(before).enumerate() {
        if let Some(value) = now.filter(|_| changed >> at & 1 == 1) {
            out.signed(match clock >> at & 1 {
                1 => clock_us.wrapping_sub(value),
                _ => value.wrapping_sub(before.unwrap_or(0)),
            });
        }
    }
}

/// Reads what [`put`] wrote: `slots` are those before, and become those now.
pub(super) fn take(
    input: &mut In<'_>,
    slots: &mut [Slot],
    clock: u64,
    clock_us: i64,
) -> Result<(), Damage> {
    let changed = input.number()?;
    if changed == 0 {
        return Ok(());
    }
    if slots.len() < 64 && changed >> slots.len() != 0 {
        return Err(Damage::Reference);
    }
    let none = input.number()?;
    for (at, slot) in slots.iter_mut().enumerate() {
        if changed >> at & 1 == 0 {
            continue;
        }
        *slot = match none >> at & 1 {
            1 => None,
            _ => Some(match (clock >> at & 1, input.signed()?) {
                (1, value) => clock_us.wrapping_sub(value),
                (_, value) => slot.unwrap_or(0).wrapping_add(value),
            }),
        };
    }
    Ok(())
}

/// Which row of the reading before a row is, as written: 0 for none, else how far it stands from where it
/// would be if nothing had come or gone.
pub(super) fn put_place(out: &mut Out, place: Option<usize>, expected: &mut usize) {
    match place {
        None => out.number(0),
        Some(place) => {
            let apart = place.cast_signed().wrapping_sub(expected.cast_signed()) as i64;
            out.number((apart << 1 ^ apart >> 63).cast_unsigned() + 1);
            *expected = place + 1;
        }
    }
}

/// Reads what [`put_place`] wrote, for `count` rows before.
pub(super) fn take_place(
    input: &mut In<'_>,
    count: usize,
    expected: &mut usize,
) -> Result<Option<usize>, Damage> {
    let Some(value) = input.number()?.checked_sub(1) else { return Ok(None) };
    let apart = (value >> 1).cast_signed() ^ -(value & 1).cast_signed();
    let place = i64::try_from(*expected).ok().and_then(|expected| expected.checked_add(apart));
    let place = place.and_then(|place| usize::try_from(place).ok()).filter(|place| *place < count);
    let place = place.ok_or(Damage::Reference)?;
    *expected = place + 1;
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_come_back(
            before in proptest::collection::vec(any::<Option<i64>>(), 5),
            now in proptest::collection::vec(any::<Option<i64>>(), 5),
            clock in 0..32_u64,
            clock_us: i64,
        ) {
            let mut out = Out::default();
            put(&mut out, &now, &before, clock, clock_us);
            let mut slots = before;
            take(&mut In(&out.0), &mut slots, clock, clock_us).unwrap();
            prop_assert_eq!(slots, now);
        }

        #[test]
        fn places_come_back(places in proptest::collection::vec(proptest::option::of(0..50_usize), 0..30)) {
            let mut out = Out::default();
            let mut expected = 0;
            places.iter().for_each(|place| put_place(&mut out, *place, &mut expected));
            let mut input = In(&out.0);
            let mut expected = 0;
            for place in places {
                prop_assert_eq!(take_place(&mut input, 50, &mut expected).unwrap(), place);
            }
        }
    }

    #[test]
    fn what_did_not_change_is_a_byte() {
        let mut out = Out::default();
        put(&mut out, &[Some(7), None], &[Some(7), None], 0, 0);
        assert_eq!(out.0, [0]);
    }
}
