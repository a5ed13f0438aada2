//! Kubernetes users: the API server checks their token and their right to a sandbox.
//!
//! A caller needs the verb `create` on the subresource `proxy` of the `Sandbox` or of the `SandboxClaim` that owns it, for
//! every HTTP method: a GET can open a WebSocket and run commands. The resources have no such subresource, so only the
//! router uses the right. Answers are cached for seconds, so that a request costs no call to the API server, and many
//! requests that arrive together cost one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;
use moka::future::Cache;
use ring::digest::{SHA256, digest};
use sandpod_kube::k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use sandpod_kube::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use sandpod_kube::kube::api::{Api, PostParams};
use sandpod_kube::kube::{Client, Error};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::target::SandboxRef;

/// The time for which an answer counts, which bounds the use of a revoked right or token.
const LIFETIME: Duration = Duration::from_secs(10);
const MAX_ANSWERS: u64 = 10_000;
/// The token reviews that run at once; further ones wait for at most [`LIMIT`].
const MAX_TOKEN_REVIEWS: usize = 64;
/// The longest time of a review.
const LIMIT: Duration = Duration::from_secs(5);

/// A user, as the API server names it.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct User {
    /// The user name.
    pub name: String,
    /// The UID, if the API server has one.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl From<UserInfo> for User {
    fn from(info: UserInfo) -> Self {
        Self {
            name: info.username.unwrap_or_default(),
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
        }
    }
}

/// The object of a right.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Object {
    Sandbox(SandboxRef),
    Claim(SandboxRef),
}

type TokenHash = [u8; 32];
type Right = (User, Object);

/// An answer of the API server.
#[derive(Clone)]
struct Answer<T> {
    value: T,
    /// When the review began: a right can be revoked while the answer is on its way.
    asked: Instant,
}

impl<T> Answer<T> {
    /// The time for which the answer still counts.
    fn remaining(&self) -> Duration {
        LIFETIME.saturating_sub(self.asked.elapsed())
    }
}

/// Expires an answer [`LIFETIME`] after its review began.
struct SinceAsked;

#[expect(clippy::disallowed_types, reason = "the trait has this type")]
impl<K, T> Expiry<K, Answer<T>> for SinceAsked {
    fn expire_after_create(&self, _: &K, answer: &Answer<T>, _: std::time::Instant) -> Option<Duration> {
        Some(answer.remaining())
    }

    fn expire_after_update(
        &self,
        _: &K,
        answer: &Answer<T>,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(answer.remaining())
    }
}

/// Reviews by the API server, and their recent answers.
#[derive(Clone)]
pub struct Reviews {
    client: Client,
    audiences: Arc<[String]>,
    users: Cache<TokenHash, Answer<Option<User>>>,
    rights: Cache<Right, Answer<bool>>,
    /// Bounds the reviews of tokens at once. A caller without any right can cause one by each new token.
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Reviews {
    /// Reviews through `client`. With `audiences`, a token must be for one of them.
    #[must_use]
    pub fn new(client: Client, audiences: Vec<String>, metrics: Arc<Metrics>) -> Self {
        let users = Cache::builder().max_capacity(MAX_ANSWERS).expire_after(SinceAsked).build();
        let rights = Cache::builder().max_capacity(MAX_ANSWERS).expire_after(SinceAsked).build();
        let permits = Arc::new(Semaphore::new(MAX_TOKEN_REVIEWS));
        Self { client, audiences: audiences.into(), users, rights, permits, metrics }
    }

    /// The user of a token.
    pub(super) async fn user_of(&self, token: &str) -> Result<User, Refusal> {
        // The token itself stays out of memory that lives longer than the request.
        let hash: TokenHash = digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap_or_default();
        let user = self.users.try_get_with(hash, self.review_token(token)).await;
        user.map_err(|error| unavailable(&error))?.value.ok_or_else(Refusal::unauthenticated)
    }

    /// Whether the user may use the object.
    pub(super) async fn is_allowed(&self, user: &User, object: &Object) -> Result<bool, Refusal> {
        let right = (user.clone(), object.clone());
        let is_allowed = self.rights.try_get_with(right, self.review_access(user, object)).await;
        is_allowed.map(|answer| answer.value).map_err(|error| unavailable(&error))
    }

    async fn review_token(&self, token: &str) -> Result<Answer<Option<User>>, String> {
        let permit = timeout(LIMIT, self.permits.acquire()).await;
        let _permit = permit.map_err(|_| "too many reviews of tokens at once")?;
        let asked = Instant::now();
        let audiences = (!self.audiences.is_empty()).then(|| self.audiences.to_vec());
        let spec = TokenReviewSpec { token: token.to_owned(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let status =
            self.review(api.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(Answer { value: None, asked });
        }
        // An API server without support for audiences ignores the request for one.
        let is_for_us = self.audiences.is_empty()
            || status.audiences.unwrap_or_default().iter().any(|audience| self.audiences.contains(audience));
        Ok(Answer { value: status.user.filter(|_| is_for_us).map(User::from), asked })
    }

    async fn review_access(&self, user: &User, object: &Object) -> Result<Answer<bool>, String> {
        let asked = Instant::now();
        let (group, resource, name) = match object {
            Object::Sandbox(name) => ("agents.x-k8s.io", "sandboxes", name),
            Object::Claim(name) => ("extensions.agents.x-k8s.io", "sandboxclaims", name),
        };
        let resource = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some("proxy".to_owned()),
            verb: Some("create".to_owned()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(resource),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = self.review(api.create(&PostParams::default(), &review)).await?.status;
        let is_allowed = status.is_some_and(|status| status.allowed && status.denied != Some(true));
        Ok(Answer { value: is_allowed, asked })
    }

    /// Runs a review within its limit, and measures it.
    async fn review<T>(&self, review: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
        let started = Instant::now();
        let answer = timeout(LIMIT, review).await;
        self.metrics.note_review(started.elapsed());
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
        }
    }
}

/// The refusal of a request while the API server cannot be asked: without a review there is no admission.
fn unavailable(error: &str) -> Refusal {
    tracing::warn!(error, "the API server did not review a request");
    Refusal::unavailable("The API server cannot check the credential at the moment.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_from_the_beginning_of_its_review() {
        let answer = Answer { value: true, asked: Instant::now() };
        assert_eq!(answer.remaining(), LIFETIME);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(answer.remaining() + Duration::from_secs(4), LIFETIME);
        tokio::time::advance(LIFETIME).await;
        assert_eq!(answer.remaining(), Duration::ZERO);
    }
}
