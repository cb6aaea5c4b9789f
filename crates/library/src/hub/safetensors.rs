//! The header of a safetensors file, read over the line: names, shapes and where the bytes are.

use super::{Hub, HubError, Listing, RemoteFile};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The format's own limit for a header.
const MAX_HEADER: u64 = 100 << 20;

/// A tensor in a file of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteTensor {
    pub name: String,
    /// As the header spells it: `BF16`, `U32`, ...
    pub dtype: String,
    pub shape: Vec<u64>,
    pub file: String,
    /// Bytes, from the start of the file.
    pub at: Range<u64>,
}

#[derive(Deserialize)]
struct Place {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Hub {
    /// Two requests: the header's length, then the header.
    pub(crate) async fn tensors(
        &self,
        listing: &Listing,
        file: &RemoteFile,
    ) -> Result<Vec<RemoteTensor>, HubError> {
        let bad = |why: &str| HubError::BadAnswer { what: file.path.clone(), why: why.to_owned() };
        if file.size < 8 {
            return Err(bad("it is too short for a safetensors file"));
        }
        let length = self.read_range(listing, file, 0..8).await?;
        let length = length.try_into().map(u64::from_le_bytes).map_err(|_| bad("no length"))?;
        if length > MAX_HEADER || length > file.size - 8 {
            return Err(bad("its header is longer than the file"));
        }
        let header = self.read_range(listing, file, 8..8 + length).await?;
        parse(&header, &file.path, file.size).map_err(|why| bad(&why.0))
    }
}

struct Why(String);

fn parse(header: &[u8], file: &str, size: u64) -> Result<Vec<RemoteTensor>, Why> {
    let mut places: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|e| Why(e.to_string()))?;
    places.remove("__metadata__");
    let start = 8 + header.len() as u64;
    let mut out = Vec::with_capacity(places.len());
    for (name, place) in places {
        let Place { dtype, shape, data_offsets: (from, to) } =
            serde_json::from_value(place).map_err(|e| Why(format!("{name}: {e}")))?;
        if from > to || to > size - start {
            return Err(Why(format!("{name} lies outside of the file")));
        }
        out.push(RemoteTensor {
            name,
            dtype,
            shape,
            file: file.to_owned(),
            at: start + from..start + to,
        });
    }
    out.sort_by_key(|tensor| tensor.at.start);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_from_the_files_start_and_stay_inside() {
        let header = br#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},
            "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let start = 8 + header.len() as u64;
        let Ok(found) = parse(header, "x", start + 8) else { panic!("a good header") };
        let names: Vec<_> = found.iter().map(|t| (t.name.as_str(), t.at.clone())).collect();
        assert_eq!(names, [("a", start..start + 4), ("b", start + 4..start + 8)]);
        assert!(parse(header, "x", start + 7).is_err());
        assert!(parse(b"[]", "x", 100).is_err());
        assert!(
            parse(br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, "x", 999).is_err()
        );
        assert!(parse(br#"{"a":{"dtype":"F32"}}"#, "x", 999).is_err());
    }
}
