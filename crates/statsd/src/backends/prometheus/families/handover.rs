//! The binary form of the exposed values, for another process that continues with them.
//!
//! Series are identified by the keys that are placed in them, in the order in which they were
//! placed. So the other process finds their names and labels by its own settings, and takes the
//! values.
//!
//! ```text
//! table     := prefix of own metrics: text, dropped values, renamed families,
//!              idle series were removed: bool,
//!              list of key, list of (gauge with timestamps: text, latest: signed)
//! key       := source: byte, key: text, in seconds: bool, number of its series, and if no earlier
//!              key had this number, the series
//! series    := last value, in seconds since 1970, f64 value, option observations
//! ```

use howdah_codec::ByteWriter as _;

use super::{FamilyTable, SeriesSource};
use crate::{
    MetricName,
    backends::prometheus::{names, observations::ExportedObservations, placements::NONE},
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
};

/// Returns all series with their keys.
pub(in crate::backends::prometheus) fn export(table: &FamilyTable) -> Vec<u8> {
    let mut out = Vec::new();
    out.write_text(&table.names.self_prefix);
    out.write_total(table.dropped);
    out.write_total(table.renamed);
    out.write_bool(table.has_evicted);
    let placed = table.placements.iter().filter_map(|(source, key)| {
        let series = table.series.get(key.series as usize)?;
        Some((source, key, series))
    });
    let placed: Vec<_> = placed.collect();
    out.write_count(placed.len());
    // The number under which the other process knows each series.
    let mut numbers = vec![NONE; table.series.len()];
    let mut next = 0;
    for (source, key, series) in placed {
        out.push(source as u8);
        out.write_text(key.name.key());
        let in_seconds = names::with_suffix(names::metric(key.name.base()), "_seconds");
        let family = table.name(&table.families[series.family as usize]);
        out.write_bool(source == SeriesSource::Timer && family.starts_with(&in_seconds));
        let number = &mut numbers[key.series as usize];
        let is_new = *number == NONE;
        if is_new {
            *number = next;
            next += 1;
        }
        out.write_varint((*number).into());
        if is_new {
            out.write_varint(series.touched.into());
            out.write_f64(series.value);
            let observations = table.observations.get(series.observed as usize);
            out.write_option(observations, |out, observed| observed.write_to(out));
        }
    }
    let timed = table.timed.latest();
    out.write_count(timed.len());
    for (name, time) in timed {
        out.write_text(name.key());
        out.write_signed(time);
    }
    out
}

/// Adds exported series to a table without values.
pub(in crate::backends::prometheus) fn import(
    table: &mut FamilyTable,
    bytes: &[u8],
) -> Result<(), HandoverFormatError> {
    let mut from = BinaryReader::new(bytes);
    let prefix = from.text()?.into();
    let (dropped, renamed, has_evicted) = (from.total()?, from.total()?, from.bool()?);
    let mut known = 0;
    let keys = from.list(|from| read_key(from, &mut known))?;
    let timed = from.list(|from| Ok((MetricName::new(from.text()?), from.signed()?)))?;
    from.finish()?;
    // Known metrics of the server itself have their own help texts.
    table.names.self_prefix = prefix;
    let mut touched = Vec::new();
    for ExportedKey { source, name, in_seconds, series } in keys {
        let now = match &series {
            SeriesContent::New(series) => {
                touched.push(series.touched);
                series.touched
            }
            SeriesContent::Known(number) => touched[*number],
        };
        let located = table.locate(source, &name, in_seconds, now, true);
        if let (Some((at, _)), SeriesContent::New(series)) = (located, series) {
            restore(table, source, at, series);
        }
    }
    for (name, time) in timed {
        table.timed.restore(&name, time);
    }
    table.has_evicted = has_evicted;
    table.dropped = table.dropped.max(dropped);
    table.renamed = table.renamed.max(renamed);
    table.sort_new();
    Ok(())
}

struct ExportedKey {
    source: SeriesSource,
    name: MetricName,
    in_seconds: bool,
    series: SeriesContent,
}

enum SeriesContent {
    New(ExportedSeries),
    /// The number of a series whose content came with an earlier key.
    Known(usize),
}

struct ExportedSeries {
    touched: u32,
    value: f64,
    observed: Option<ExportedObservations>,
}

/// Reads a key. `known` is the number of series so far.
fn read_key(
    from: &mut BinaryReader<'_>,
    known: &mut usize,
) -> Result<ExportedKey, HandoverFormatError> {
    let source = SeriesSource::ALL.get(usize::from(from.byte()?)).copied();
    let source = source.ok_or(HandoverFormatError::Invalid("a series has an unknown type"))?;
    let (name, in_seconds) = (MetricName::new(from.text()?), from.bool()?);
    let number: usize = from.number()?;
    let series = if number < *known {
        SeriesContent::Known(number)
    } else if number == *known {
        *known += 1;
        SeriesContent::New(ExportedSeries {
            touched: from.number()?,
            value: from.f64()?,
            observed: from.option(ExportedObservations::read_from)?,
        })
    } else {
        return Err(HandoverFormatError::Invalid("the numbers of series have gaps"));
    };
    Ok(ExportedKey { source, name, in_seconds, series })
}

/// Continues a series. Under other settings than before, several may have become one: then their
/// counts are added.
fn restore(table: &mut FamilyTable, source: SeriesSource, at: usize, exported: ExportedSeries) {
    let series = &mut table.series[at];
    match source {
        SeriesSource::Counter => series.value += exported.value,
        _ => series.value = exported.value,
    }
    let observed = table.observations.get_mut(series.observed as usize);
    if let (Some(observed), Some(exported)) = (observed, exported.observed) {
        observed.restore(exported);
    }
}
