//! Reads the body of a request.
//!
//! All bodies that are in memory at the same time share a limit of bytes, so that many of them
//! can't take the memory that the model needs. Small bodies have a limit of their own: a few
//! clients that send large bodies slowly keep only each other waiting.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::request_log::RequestRecord;
use super::{App, Working};

/// The bytes of large bodies that are in memory at once, or as many as the limit for one allows.
const LARGE_TOGETHER: usize = 8 << 20;
/// The bytes of small ones.
const SMALL_TOGETHER: usize = 4 << 20;
/// A body up to this size is small.
const SMALL: usize = 64 << 10;
/// How long a client may take to send one.
const READING: Duration = Duration::from_secs(30);

/// Room for the bodies that are read, in KiB.
#[derive(Debug)]
pub(super) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Bodies {
    /// Room for bodies of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        let semaphore = |bytes| Arc::new(Semaphore::new(kib(bytes) as usize));
        Self { small: semaphore(SMALL_TOGETHER), large: semaphore(LARGE_TOGETHER.max(most)) }
    }

    /// Waits for room for a body of so many bytes.
    async fn room(&self, size: usize) -> Option<OwnedSemaphorePermit> {
        let semaphore = if size <= SMALL { &self.small } else { &self.large };
        // Neither is ever closed.
        Arc::clone(semaphore).acquire_many_owned(kib(size)).await.ok()
    }
}

/// A request that has been read whole.
pub(super) struct RequestBody {
    pub(super) body: Vec<u8>,
    /// Held for as long as the body or what was read from it is in memory.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// From now on it has to be answered.
    pub(super) working: Working,
}

impl FromRequest<Arc<App>> for RequestBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let (body, room) =
            read_json(&app.bodies, &parts.headers, body, app.settings.max_body).await?;
        let record = parts.extensions.get::<Arc<RequestRecord>>().cloned();
        Ok(Self { body, room, working: app.working(record) })
    }
}

/// Reads a body of JSON within `most` bytes, once there is room for it.
pub(super) async fn read_json(
    bodies: &Bodies,
    headers: &HeaderMap,
    body: Body,
    most: usize,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    if !is_json(headers) {
        return Err(ApiError::not_json());
    }
    let size = told_size(headers).unwrap_or(most);
    if size > most {
        return Err(ApiError::too_large(most));
    }
    let room = bodies.room(size).await;
    let reading = read_to_end(body, size, most);
    let body =
        tokio::time::timeout(READING, reading).await.map_err(|_| ApiError::slow(READING))??;
    Ok((body, room))
}

/// Reads a body into one buffer; collecting its frames first would hold it twice.
async fn read_to_end(mut body: Body, size: usize, most: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(size);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ApiError::invalid("the request could not be read to its end"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(ApiError::too_large(most));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Pages of other sites can make a browser post anything but JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn told_size(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3)
}
