//! The daemon, its users, workers and trust groups.

use axum::extract::State;
use protocol::{
    DROP_REASONS, DaemonInfo, DropReason, GroupAudit, GroupRequest, Page, PageFrom, Request, Usage,
    UsageRequest, UserUsage, WorkerInfo, WorkerRequest,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, CLIENT, Shared, json};
use crate::extract::Parameters;

/// Operations that show the daemon.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(daemon))
        .routes(routes!(usage))
        .routes(routes!(users))
        .routes(routes!(workers))
        .routes(routes!(groups))
        .routes(routes!(drop_reasons))
}

/// Shows the daemon.
#[utoipa::path(
    get, path = "/v1/daemon", tag = "daemon", responses((status = 200, body = DaemonInfo))
)]
async fn daemon(State(api): State<Shared>) -> Answer {
    Ok(json(&api.connect(|connection| connection.hello(CLIENT)).await?))
}

/// Shows what the daemon uses.
#[utoipa::path(get, path = "/v1/usage", tag = "daemon", responses((status = 200, body = Usage)))]
async fn usage(State(api): State<Shared>) -> Answer {
    api.answer(Request::Usage(UsageRequest::Show)).await
}

/// Lists users with what they have.
#[utoipa::path(
    get, path = "/v1/users", tag = "daemon",
    params(("from" = Option<String>, Query)),
    responses((status = 200, body = Page<UserUsage>))
)]
async fn users(State(api): State<Shared>, Parameters(page): Parameters<PageFrom>) -> Answer {
    api.answer(Request::Usage(UsageRequest::Users(page))).await
}

/// Lists workers.
#[utoipa::path(
    get, path = "/v1/workers", tag = "daemon",
    params(("from" = Option<String>, Query)),
    responses((status = 200, body = Page<WorkerInfo>))
)]
async fn workers(State(api): State<Shared>, Parameters(page): Parameters<PageFrom>) -> Answer {
    api.answer(Request::Worker(WorkerRequest::List(page))).await
}

/// Lists trust groups. A group of many members stands in several parts.
#[utoipa::path(
    get, path = "/v1/groups", tag = "daemon",
    params(("from" = Option<String>, Query)),
    responses((status = 200, body = Page<GroupAudit>))
)]
async fn groups(State(api): State<Shared>, Parameters(page): Parameters<PageFrom>) -> Answer {
    api.answer(Request::Group(GroupRequest::Audit(page))).await
}

/// Lists the reasons for which the switch drops frames, and what to do.
#[utoipa::path(
    get, path = "/v1/drop-reasons", tag = "ports", responses((status = 200, body = Vec<DropReason>))
)]
async fn drop_reasons() -> Answer {
    Ok(json(&DROP_REASONS.as_slice()))
}
