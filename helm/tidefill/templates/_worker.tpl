{{/* The pod of a worker, of the values `worker`: for the Deployment, and as the template of a launcher. */}}
{{- define "tidefill.workerPod" -}}
{{- $executors := int .worker.executors }}
{{- $master := .worker.sparkMaster }}
{{- $conf := .worker.sparkConf }}
{{- if $executors }}
{{- $master = ternary $master "k8s://https://kubernetes.default.svc" (hasPrefix "k8s://" $master) }}
{{- $conf = merge (deepCopy $conf) (include "tidefill.executorConf" . | fromYaml) }}
{{- end }}
metadata:
  labels:
    {{- include "tidefill.labels" .root | nindent 4 }}
    app.kubernetes.io/component: worker
  {{- if or .worker.podAnnotations $executors }}
  annotations:
    {{- with .worker.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $executors }}
    # A changed template of executors is a changed template of their worker.
    tidefill.dev/executor: {{ include "tidefill.executorPod" . | sha256sum | trunc 12 | quote }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ if $executors }}{{ include "tidefill.name" .root }}-driver{{ else }}{{ include "tidefill.serviceAccount" .root }}{{ end }}
  # Only a driver on Kubernetes calls its API: it creates and deletes the pods of its executors.
  automountServiceAccountToken: {{ hasPrefix "k8s://" $master }}
  enableServiceLinks: false
  {{- with .worker.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .worker.terminationGracePeriodSeconds }}
  # Spark's Python daemons lose their parents now and then: the pause process reaps them.
  shareProcessNamespace: true
  {{- include "tidefill.pullSecrets" .root | nindent 2 }}
  securityContext:
    {{- include "tidefill.podSecurity" .root | nindent 4 }}
  containers:
    - name: worker
      image: {{ include "tidefill.image" (dict "image" .worker.image "version" .root.Chart.AppVersion) }}
      imagePullPolicy: {{ .worker.image.pullPolicy }}
      # The reason of an end is the last line of the log, which nobody needs a right to read then.
      terminationMessagePolicy: FallbackToLogsOnError
      # A launcher gives each pod its identity. Otherwise a container that starts again makes its own.
      env:
        - {name: TIDEFILL_SERVICE_URL, value: "http://{{ include "tidefill.name" .root }}-internal:8700"}
        - {name: TIDEFILL_SPARK_MASTER, value: {{ $master | quote }}}
        {{- if $executors }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_NAMESPACE
          valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        {{- with $conf }}
        - name: TIDEFILL_SPARK_CONF
          value: {{ toJson . | quote }}
        {{- end }}
        {{- if not (hasPrefix "local" $master) }}
        # Executors connect to the driver at this name.
        - name: SPARK_LOCAL_HOSTNAME
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        # Its successor starts meanwhile. The rest of the grace is for the end of an epoch and of Spark.
        - {name: TIDEFILL_LEAVE_SECONDS, value: {{ max 0 (sub .worker.terminationGracePeriodSeconds 15) | quote }}}
        - {name: TIDEFILL_LOG_FORMAT, value: json}
        - {name: TIDEFILL_LOG_LEVEL, value: {{ .worker.logLevel }}}
        - {name: TIDEFILL_SECRETS_DIR, value: /run/secrets/tidefill}
        - {name: HOME, value: /var/lib/tidefill}
        - {name: SPARK_LOCAL_DIRS, value: /var/spark}
      # A driver without its JVM does no work and may not notice; hung work is noticed by the service.
      startupProbe:
        exec: {command: [pgrep, -f, org.apache.spark.deploy.SparkSubmit]}
        periodSeconds: 5
        failureThreshold: 24
      livenessProbe:
        exec: {command: [pgrep, -f, org.apache.spark.deploy.SparkSubmit]}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if $executors }}
      ports:
        - {name: driver, containerPort: 7078}
        - {name: blocks, containerPort: 7079}
      {{- end }}
      resources:
        {{- toYaml .worker.resources | nindent 8 }}
      securityContext:
        {{- include "tidefill.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/tidefill, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /var/lib/tidefill}
        - {name: scratch, mountPath: /var/spark}
        {{- if $executors }}
        - {name: executor, mountPath: /etc/tidefill, readOnly: true}
        {{- end }}
  volumes:
    - name: secrets
      secret:
        secretName: {{ .root.Values.secrets.existingSecret }}
        defaultMode: 0440
        items:
          - {key: {{ .root.Values.secrets.keys.stateStoreUrl }}, path: tidefill_state_store_url}
          - {key: {{ .root.Values.secrets.keys.workerToken }}, path: tidefill_worker_token}
    - name: tmp
      emptyDir: {}
    - name: home
      emptyDir: {}
    - name: scratch
      emptyDir:
        sizeLimit: {{ .worker.scratchSize }}
    {{- if $executors }}
    - name: executor
      configMap:
        name: {{ include "tidefill.name" .root }}-worker
        items:
          - {key: {{ .profile }}.executor.yaml, path: executor.yaml}
    {{- end }}
  {{- include "tidefill.placement" .worker | nindent 2 }}
{{- end -}}
