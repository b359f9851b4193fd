{{/* The pod of a worker, of the values `worker`: for the Deployment, and as the template of a launcher. */}}
{{- define "tidefill.workerPod" -}}
metadata:
  labels:
    {{- include "tidefill.labels" .root | nindent 4 }}
    app.kubernetes.io/component: worker
  {{- with .worker.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "tidefill.serviceAccount" .root }}
  # Only a driver on Kubernetes calls its API: it creates and deletes the pods of its executors.
  automountServiceAccountToken: {{ hasPrefix "k8s://" .worker.sparkMaster }}
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
        - {name: TIDEFILL_SPARK_MASTER, value: {{ .worker.sparkMaster | quote }}}
        {{- with .worker.sparkConf }}
        - name: TIDEFILL_SPARK_CONF
          value: {{ toJson . | quote }}
        {{- end }}
        {{- if not (hasPrefix "local" .worker.sparkMaster) }}
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
      resources:
        {{- toYaml .worker.resources | nindent 8 }}
      securityContext:
        {{- include "tidefill.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/tidefill, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /var/lib/tidefill}
        - {name: scratch, mountPath: /var/spark}
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
  {{- include "tidefill.placement" .worker | nindent 2 }}
{{- end -}}
