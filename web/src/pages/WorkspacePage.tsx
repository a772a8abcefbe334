import { ActionButtons } from "../components/ActionButtons";
import { Archives } from "../components/Archives";
import { ConditionTable } from "../components/ConditionTable";
import { ErrorNote } from "../components/ErrorNote";
import { Facts } from "../components/Facts";
import { HomeNotice } from "../components/HomeSize";
import { Icon } from "../components/Icon";
import { Leases } from "../components/Leases";
import { LogsPanel } from "../components/LogsPanel";
import { MemoPanel } from "../components/MemoPanel";
import { PageTitle } from "../components/PageTitle";
import { PhaseChip } from "../components/PhaseChip";
import { SettingsForm } from "../components/SettingsForm";
import { Stats } from "../components/Stats";
import { Timeline } from "../components/Timeline";
import { WorkspaceStatus } from "../components/WorkspaceStatus";
import { messages } from "../i18n";
import { useWorkspaceTask } from "../state/task";
import { useWorkspace, type WatchedWorkspace } from "../state/watched_workspace";
import type { Workspace } from "../types";

export function WorkspacePage({ id }: { id: string }) {
  const text = messages.value.detail;
  const watched = useWorkspace(id);
  return (
    <>
      <a class="back" href={watched.viewer === "admin" && watched.workspace ? "/admin/workspaces" : "/"}>
        <Icon name="back" />
        {text.back}
      </a>
      {watched.workspace ? (
        <Detail watched={watched} workspace={watched.workspace} />
      ) : (
        <Missing watched={watched} />
      )}
    </>
  );
}

function Missing({ watched }: { watched: WatchedWorkspace }) {
  const text = messages.value;
  if (!watched.error) return <p class="muted">{text.list.loading}</p>;
  if (watched.error.status === 404 || watched.error.status === 403) return <p>{text.detail.notFound}</p>;
  return <ErrorNote error={watched.error} />;
}

function Detail({ watched, workspace }: { watched: WatchedWorkspace; workspace: Workspace }) {
  const text = messages.value;
  const isOwner = watched.viewer === "owner";
  return (
    <>
      <Head watched={watched} workspace={workspace} />
      <div class="detail">
        <div class="detail-main">
          {isOwner && <MemoPanel workspace={workspace} />}
          <section class="panel">
            <h2>{text.detail.timeline}</h2>
            <Timeline id={workspace.id} />
          </section>
          {isOwner && <LogsPanel workspace={workspace} />}
        </div>
        <div class="detail-side">
          <section class="panel">
            <h2>{text.detail.facts}</h2>
            <Facts workspace={workspace} />
          </section>
          {workspace.phase === "RUNNING" && <Stats workspace={workspace} />}
          <section class="panel">
            <h2>{text.detail.conditions}</h2>
            <ConditionTable conditions={workspace.conditions} />
          </section>
          <section class="panel">
            <h2>{text.archives.title}</h2>
            <Archives workspace={workspace} isOwner={isOwner} />
          </section>
          {isOwner && workspace.phase === "RUNNING" && <Leases workspace={workspace} />}
          {isOwner && <SettingsForm workspace={workspace} />}
        </div>
      </div>
    </>
  );
}

function Head({ watched, workspace }: { watched: WatchedWorkspace; workspace: Workspace }) {
  const task = useWorkspaceTask(workspace);
  return (
    <section
      class="panel detail-head"
      data-testid="workspace-detail"
      data-workspace-id={workspace.id}
      data-phase={workspace.phase}
      data-operation={workspace.operation}
    >
      <PageTitle title={workspace.name}>
        <PhaseChip phase={workspace.phase} />
      </PageTitle>
      {watched.viewer === "admin" && (
        <p class="muted">{messages.value.card.owner(workspace.owner.username)}</p>
      )}
      {workspace.description && <p>{workspace.description}</p>}
      <WorkspaceStatus workspace={workspace} />
      <HomeNotice home={workspace.home} />
      <ErrorNote error={task.error} onDismiss={task.clear} />
      <ActionButtons workspace={workspace} viewer={watched.viewer} task={task} onDone={watched.reload} />
    </section>
  );
}
