//! Timing and data of benchmarks.

use anyhow::Result;
use tokio::time::Instant;

/// The size of a bulk transfer in MiB.
pub const BULK_MIB: u32 = 64;
/// The size of a bulk transfer in bytes; see [`BULK_MIB`].
pub const BULK: usize = (BULK_MIB as usize) << 20;

/// Returns the duration in milliseconds.
pub async fn timed(work: impl Future<Output = Result<()>>) -> Result<f64> {
    let begin = Instant::now();
    work.await?;
    Ok(begin.elapsed().as_secs_f64() * 1000.0)
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns bytes that do not compress.
#[must_use]
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}
